"""Asks a retriever of this process or a server, whichever an adapter was given; makes texts of candidates."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakKeyDictionary

from genret.retrieval.arguments import check_known, named
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.types import (
    Candidate,
    Mention,
    MetadataValue,
    RequestOptions,
    RetrievalResult,
    RetrieveRequest,
    with_options,
)
from genret.service.client import AsyncRetrievalClient, ClientOptions, Reply, RetrievalClient

if TYPE_CHECKING:  # who asks a server needs no model
    from genret.retrieval.retriever import Retriever

# Several adapters may share a retriever, which answers one call at a time.
_LOCKS: WeakKeyDictionary[Retriever, threading.Lock] = WeakKeyDictionary()
TOKEN_VARIABLE = "GENRET_TOKEN"
DEFAULT_TEXT_COLUMN = "description"
# A server takes 256 items a call unless it is told otherwise; few enough for calls of others to come between.
_MENTIONS_PER_CALL = 64
# What an adapter says of a candidate beside the catalogue's columns.
OWN_METADATA = ("entity_id", "title", "surface", "logprob", "probability", "score")


class EntitySource:
    """An index with its model, or a server; opened when first asked, used from any thread.

    A retriever answers one call at a time, in a thread beside the event loop; a server is asked by the
    client of the kind at hand, blocking or asyncio. The bearer token is the variable GENRET_TOKEN's, so that
    an adapter can be written to a file.

    Args:
        index: Directory of an index, or an open retriever, which the caller closes; with an address the name
            of an index there, None for the server's default one.
        model: Checkpoint of the index, as in `Retriever.open`; None: the default model.
        address: `host:port` of a server; None: the index is opened here.
        connection: Attributes of `ClientOptions` for the server.
        text_column: Column whose text follows the title in `text_of`.

    Raises:
        InputError: what is given does not go together, or an option cannot be used. Of a `text_column` that
            the index lacks it comes when the index is opened, with a server when it answers.
    """

    def __init__(
        self,
        index: str | Path | Retriever | None = None,
        model: str | Path | None = None,
        address: str | None = None,
        connection: Mapping[str, Any] | None = None,
        text_column: str = DEFAULT_TEXT_COLUMN,
    ) -> None:
        self.text_column = text_column
        self.index, self.model, self.address, self.connection = index, model, address, dict(connection or {})
        if address is None:
            if index is None:
                raise InputError(
                    "index", "an index directory or the address of a server is needed, got neither"
                )
            if self.connection:
                raise InputError("connection", "needs the address of a server, got none")
        elif not isinstance(index, str | None):
            raise InputError("index", f"must be the name of an index at {address}, got {index!r}")
        if model is not None and (address is not None or _is_retriever(index)):
            raise InputError("model", f"needs an index directory to go with, got {model!r}")
        self._options = _client_options(self.connection)
        if address is not None:
            self._options.check(address)
        self._retriever = self._checked(index) if _is_retriever(index) else None
        self._process = os.getpid()
        own = threading.Lock()
        self._lock = own if self._retriever is None else _LOCKS.setdefault(self._retriever, own)
        self._client: RetrievalClient | None = None
        self._clients: dict[asyncio.AbstractEventLoop, AsyncRetrievalClient] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in another process too, opens the index or the connection anew."""
        return type(self), tuple(self.saved().values())

    def saved(self) -> dict[str, Any]:
        """Return the arguments by name, as plain values; InputError for an open retriever."""
        if _is_retriever(self.index):
            raise InputError("index", "must be a directory to be saved or copied, got an open retriever")
        plain = {name: str(v) if isinstance(v, Path) else v for name, v in self.connection.items()}
        index, model = (None if place is None else str(place) for place in (self.index, self.model))
        place = {"index": index, "model": model, "address": self.address, "connection": plain}
        return {**place, "text_column": self.text_column}

    def open(self) -> None:
        """Load index and model now; of a server, only its address is looked at. Idempotent."""
        with self._lock:
            self._opened()

    def close(self) -> None:
        """Close what was opened here; an asyncio client is closed with its last reference. Idempotent."""
        with self._lock:
            if self._retriever is not None and self._retriever is not self.index:
                self._retriever.close()
                self._retriever = None
            if self._client is not None:
                self._client.close()
                self._client = None
            self._clients.clear()

    def retrieve(self, request: RetrieveRequest) -> RetrievalResult:
        """Answer a query; errors are those of `Retriever.retrieve`, or CallError of the client."""
        with self._lock:
            opened = self._opened()
            if not isinstance(opened, RetrievalClient):
                (found,) = opened.retrieve_batch([request])
                return _result(found)
        return opened.retrieve(request, self._served).result

    async def aretrieve(self, request: RetrieveRequest) -> RetrievalResult:
        """Answer a query as `retrieve` does, without blocking the event loop."""
        if self.address is None:
            return await asyncio.to_thread(self.retrieve, request)
        return (await self._async_client(self.address).retrieve(request, self._served)).result

    def link(self, mentions: Sequence[Mention], options: Mapping[str, Any]) -> list[RetrievalResult]:
        """Link mentions, in order, with options of `Retriever.link`; the first error of one is raised."""
        with self._lock:
            opened = self._opened()
            if not isinstance(opened, RetrievalClient):
                return opened.link(mentions, **options)
        results = []
        for at in range(0, len(mentions), _MENTIONS_PER_CALL):
            some = mentions[at : at + _MENTIONS_PER_CALL]
            results += [_result(one) for one in opened.link(some, index=self._served, **options)]
        return results

    def text_of(self, candidate: Candidate) -> str:
        """Return the title and the text of the column, if any; InputError if the index lacks the column."""
        if self.address is not None:  # of an index opened here it is known since then
            self._check_column(candidate.metadata)
        text = candidate.metadata.get(self.text_column)
        return candidate.title if text is None or text == "" else f"{candidate.title}: {text}"

    @property
    def _served(self) -> str:
        return self.index if isinstance(self.index, str) else ""

    def _opened(self) -> Retriever | RetrievalClient:
        """Return what answers; with the lock held."""
        opened = self._retriever or self._client
        if opened is None:
            self._process = os.getpid()
            if self.address is not None:
                opened = self._client = RetrievalClient(self.address, self._options)
            else:
                from genret.retrieval.retriever import Retriever

                assert isinstance(self.index, str | Path)
                opened = self._retriever = self._checked(Retriever.open(self.index, self.model))
        elif self._process != os.getpid():  # threads of torch and gRPC are gone: it would wait for ever
            raise GenretError(
                "an adapter that was used before its process was forked cannot answer in the new one: load "
                "it there, or fork before the first use"
            )
        return opened

    def _checked(self, retriever: Retriever) -> Retriever:
        self._check_column(retriever.index.metadata_columns)
        return retriever

    def _check_column(self, columns: Iterable[str]) -> None:
        if self.text_column != DEFAULT_TEXT_COLUMN:
            check_known([self.text_column], sorted(columns), "is no column of the index (text_column)")

    def _async_client(self, address: str) -> AsyncRetrievalClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            for ended in [known for known in self._clients if known.is_closed()]:
                del self._clients[ended]
            if loop not in self._clients:
                self._clients[loop] = AsyncRetrievalClient(address, self._options)
            return self._clients[loop]


def _is_retriever(index: str | Path | Retriever | None) -> TypeGuard[Retriever]:
    if index is None or isinstance(index, str | Path):
        return False
    if not hasattr(index, "retrieve_batch"):
        raise InputError("index", f"must be a directory or an open retriever, got {index!r}")
    return True


def _client_options(connection: Mapping[str, Any]) -> ClientOptions:
    if "token" in connection:
        raise InputError("connection", f"a token stands in {TOKEN_VARIABLE}, where nobody saves it")
    files = {"tls_ca", "tls_certificate", "tls_key"}
    given: dict[str, Any] = {
        name: Path(v) if name in files and v is not None else v for name, v in connection.items()
    }
    if "metadata" in given:  # lists, as they are read from files
        given["metadata"] = tuple((name, value) for name, value in given["metadata"])
    return ClientOptions(**given, token=os.environ.get(TOKEN_VARIABLE) or None)


def _result(reply: RetrievalResult | Reply | Exception) -> RetrievalResult:
    if isinstance(reply, Exception):
        raise reply
    return reply.result if isinstance(reply, Reply) else reply


def asked(
    query: str, options: Mapping[str, Any], restriction: str | None = None, k_name: str = "k"
) -> RetrieveRequest:
    """Return a request with options by name, `k` and `method` among them.

    A `restriction` is a predicate that must pass beside the option `filter`. InputError names an option that
    cannot be used, `k` as the adapter calls it.
    """
    known = sorted(RequestOptions.__annotations__.keys() | {"k", "method", "prompt"})
    check_known(options, known, "is no option of a request")
    rest: Any = dict(options)
    own = rest.get("filter")
    if restriction is not None:
        rest["filter"] = restriction if own is None else f"({own}) and ({restriction})"
    k, method, prompt = rest.pop("k"), rest.pop("method"), rest.pop("prompt", None)
    with named("k", k_name):
        return replace(with_options(k, method, prompt, rest), query=query)


def metadata_of(candidate: Candidate) -> dict[str, MetadataValue]:
    """Return the catalogue's columns and `OWN_METADATA`, which go before columns of the same name."""
    return {**candidate.metadata, **{name: getattr(candidate, name) for name in OWN_METADATA}}
