"""`Retriever`: an index and a model, opened together, answering queries.

Text in, entities out. It knows prompts, titles and entities; what a decode step is, it leaves to
`decoding`. One retriever is used by one thread at a time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError, DecodingError, InvalidLogitsError
from decoding.language_model import LanguageModel
from decoding.title_trie import TitleTrie
from retrieval.arguments import named, sequence
from retrieval.compatibility import check_rendering, check_templates
from retrieval.defaults import default_model_dir
from retrieval.errors import GenretError, InputError, ModelError
from retrieval.filters.cache import DEFAULT_FILTER_CACHE_BYTES
from retrieval.filters.entity_filter import EntityFilter
from retrieval.filters.parser import parse
from retrieval.filters.restriction import Restriction, checked_ids
from retrieval.filters.store import FilterStore
from retrieval.index.reader import Index
from retrieval.limits import Limits
from retrieval.methods import Outcome, nothing_allowed, run_beam, run_disc
from retrieval.prompts import CheckpointConfig
from retrieval.text import TextTokenizer
from retrieval.types import Mention, RetrievalResult, RetrieveRequest, Timings

DEFAULT_BATCH_SIZE = 32
# Seeds that are chosen here survive JSON readers whose only numbers are doubles.
_SEED_BITS = 53

# Logits of one decode step, float32: batches of wide requests are split to stay below it.
_MAX_LOGITS_BYTES = 256 * 2**20

Reply = RetrievalResult | GenretError | DecodingCancelledError


class _Job(NamedTuple):
    """One request on its way into a batch."""

    request: RetrieveRequest
    prompt: list[int]
    cancel: CancelToken | None
    allowed: EntityFilter | None

    @property
    def is_hopeless(self) -> bool:
        """Whether the filter allows no entity at all."""
        return self.allowed is not None and not self.allowed.num_allowed


class Retriever:
    """Answers queries with entities of one index, written by one model.

    Args:
        index: An open index; closed together with the retriever.
        model: The model behind the decoding protocol.
        tokenizer: The model's tokenizer.
        config: Prompt templates and rendering of the checkpoint.
        filter_cache_bytes: Bound on the memory of filters kept for further requests.

    Attributes:
        filters: The filters of the index, those kept among them.

    Raises:
        IndexMismatchError: the index was built for another tokenizer or rendering, or holds token ids
            the model does not have.
        InputError: the bound on filters is negative.
    """

    def __init__(
        self,
        index: Index,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        config: CheckpointConfig | None = None,
        *,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_BYTES,
    ) -> None:
        self.index = index
        self.model = model
        self.tokenizer = tokenizer
        self.config = config or CheckpointConfig()
        index.check_tokenizer(tokenizer, model.vocab_size)
        check_rendering(index, tokenizer, self.config)
        check_templates(tokenizer, self.config, model.vocab_size)
        self._limits = Limits.of(model)
        self.trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
        self.filters = FilterStore(index, model.device, filter_cache_bytes)

    @classmethod
    def open(
        cls,
        index: str | Path,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        num_threads: int | None = None,
        verify_digests: bool = True,
        trust_remote_code: bool = False,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_BYTES,
    ) -> Retriever:
        """Open an index directory and load a checkpoint.

        Args:
            index: Index directory, as `build-index` wrote it.
            model: Checkpoint directory or hub id; None: the shipped default model.
            device: "auto", "cpu", "cuda", "cuda:1", ...
            dtype: "auto", "float32", "bfloat16", "float16" or "float64".
            num_threads: Torch threads of this process; None: leave them as they are.
            verify_digests: Check every file's digest, not only sizes and structure.
            trust_remote_code: Run model code that a hub checkpoint brings along.
            filter_cache_bytes: Bound on the memory of filters kept for further requests; one that is larger
                alone is made anew for every batch.

        Raises:
            GenretError: the index or the checkpoint cannot be used, or they do not fit together.
        """
        opened = Index.open(index, verify_digests=verify_digests)
        try:
            place = default_model_dir() if model is None else model
            tokenizer = TextTokenizer.load(place)
            # Of a hub id, `source` is the folder it was fetched into.
            config = CheckpointConfig.load(Path(tokenizer.source))
            opened.check_tokenizer(tokenizer, None)  # before the weights, which take longer
            check_rendering(opened, tokenizer, config)
            loaded = _load_model(place, device, dtype, num_threads, trust_remote_code)
            return cls(opened, loaded, tokenizer, config, filter_cache_bytes=filter_cache_bytes)
        except BaseException:
            opened.close()
            raise

    def open_another(self, index: str | Path, *, verify_digests: bool = True) -> Retriever:
        """Open a further index for the same model, which is shared and not loaded again.

        Args:
            index: Index directory, as `build-index` wrote it.
            verify_digests: Check every file's digest, not only sizes and structure.

        Raises:
            GenretError: the index cannot be used, or does not fit the model.
        """
        opened = Index.open(index, verify_digests=verify_digests)
        try:
            return type(self)(
                opened,
                self.model,
                self.tokenizer,
                self.config,
                filter_cache_bytes=self.filters.max_bytes,
            )
        except BaseException:
            opened.close()
            raise

    def __repr__(self) -> str:
        index = self.index
        return (
            f"Retriever({str(index.path)!r}: {index.num_entities} entities, {index.num_rows} rows; "
            f"tokenizer {self.tokenizer.source!r}, model on {self.model.device})"
        )

    def close(self) -> None:
        """Release the index and the filters kept. Idempotent."""
        self.filters.clear()
        self.index.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def retrieve(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        method: str = "beam",
        *,
        beam_size: int | None = None,
        num_draws: int = 4,
        num_samples: int | None = None,
        temperature: float = 1.0,
        top_m: int | None = None,
        seed: int | None = None,
        prompt: str | None = None,
        filter: str | None = None,
        allow_ids: Iterable[str] | None = None,
        deny_ids: Iterable[str] = (),
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> list[RetrievalResult]:
        """Answer queries, in their order. See `RetrieveRequest` for the options.

        Raises:
            InputError: an option or a query is out of range, a query is too long for the model, or the
                filter does not fit the index.
            ModelError: the model returned broken logits.
        """
        single = isinstance(queries, str)
        texts = sequence("queries", queries, str)
        names = ["query"] if single else [f"queries[{i}]" for i in range(len(texts))]
        allowed, denied = _checked_lists(allow_ids, deny_ids)
        requests = []
        for name, text in zip(names, texts, strict=True):
            with named("query", name):
                requests.append(
                    RetrieveRequest(
                        query=text,
                        k=k,
                        method=method,
                        beam_size=beam_size,
                        num_draws=num_draws,
                        num_samples=num_samples,
                        temperature=temperature,
                        top_m=top_m,
                        seed=seed,
                        prompt=prompt,
                        filter=filter,
                        allow_ids=allowed,
                        deny_ids=denied,
                    )
                )
        return self._all_or_error(requests, names, batch_size)

    def link(
        self,
        mentions: Mention | Sequence[Mention],
        k: int = 1,
        method: str = "beam",
        *,
        beam_size: int | None = None,
        seed: int | None = None,
        filter: str | None = None,
        allow_ids: Iterable[str] | None = None,
        deny_ids: Iterable[str] = (),
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> list[RetrievalResult]:
        """Link mentions in context to entities, in their order, all under one filter.

        Raises:
            InputError: an option is out of range, a mention is empty or too long for the model, or the
                filter does not fit the index.
        """
        single = isinstance(mentions, Mention)
        spans = sequence("mentions", mentions, Mention)
        names = ["mention"] if single else [f"mentions[{i}]" for i in range(len(spans))]
        allowed, denied = _checked_lists(allow_ids, deny_ids)
        requests = []
        for name, mention in zip(names, spans, strict=True):
            with named("mention", name):
                requests.append(
                    self.link_request(mention, k, method, beam_size, seed, filter, allowed, denied)
                )
        return self._all_or_error(requests, names, batch_size)

    def link_request(
        self,
        mention: Mention,
        k: int = 1,
        method: str = "beam",
        beam_size: int | None = None,
        seed: int | None = None,
        filter: str | None = None,
        allow_ids: tuple[str, ...] | None = None,
        deny_ids: tuple[str, ...] = (),
    ) -> RetrieveRequest:
        """Return the request that links one mention with the checkpoint's mention template.

        Raises:
            InputError: an option is out of range, or the mention is empty.
        """
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        template = self.config.prompt(self.config.mention_prompt)
        query = template.mention_query(mention)
        return RetrieveRequest(
            query,
            k=k,
            method=method,
            beam_size=beam_size,
            seed=seed,
            prompt=template.name,
            filter=filter,
            allow_ids=allow_ids,
            deny_ids=deny_ids,
        )

    def check_filter(self, filter: str) -> None:
        """Refuse a predicate that no request to this index could use; makes no filter.

        Raises:
            InputError: it is no predicate, or does not fit the index.
        """
        self.filters.check(Restriction(parse(filter)))

    def prompt_tokens(self, request: RetrieveRequest) -> int:
        """Return the request's prompt length in tokens: its share of a batch.

        Raises:
            InputError: the template is unknown, the query is too long for the model, or the filter does not
                fit the index.
        """
        return len(self._prompt(request))

    def warm_up(self) -> None:
        """Answer one query by each method, so that the first real one finds everything in place."""
        for method in ("beam", "disc"):
            self.retrieve("warm-up", k=1, method=method, seed=0, num_samples=1)

    def retrieve_batch(
        self, requests: Sequence[RetrieveRequest], cancel: Sequence[CancelToken | None] | None = None
    ) -> list[Reply]:
        """Answer requests with any mixture of options; what is compatible shares its forwards.

        Args:
            requests: At most as many as fit into memory together.
            cancel: Polled between decode steps, one per request.

        Returns:
            Per request its result, or the error that concerns this request alone.
        """
        tokens = list(cancel) if cancel is not None else [None] * len(requests)
        replies: dict[int, Reply] = {}
        prompts: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            try:
                prompts[i] = self._prompt(request)
            except InputError as error:
                replies[i] = error
        replies.update(self._answer(requests, prompts, tokens))
        return [replies[i] for i in range(len(requests))]

    def _answer(
        self,
        requests: Sequence[RetrieveRequest],
        prompts: Mapping[int, list[int]],
        cancel: Sequence[CancelToken | None],
    ) -> dict[int, Reply]:
        """Answer the requests that have a prompt; keys are their positions in `requests`."""
        replies: dict[int, Reply] = {}
        groups: dict[tuple[str, int | None, int], list[int]] = {}
        for i in prompts:
            request = requests[i]
            # A forward is as wide as its widest query, so that only requests of like width go together.
            width = 1 << (request.width - 1).bit_length()
            groups.setdefault((request.method, request.top_m, width), []).append(i)
        for (_, _, width), members in groups.items():
            most = max(1, _MAX_LOGITS_BYTES // (width * self.model.vocab_size * 4))
            rest = iter(members)
            for filters in self.filters.batches([requests[i].restriction for i in members], most):
                part = list(islice(rest, len(filters)))
                jobs = [
                    _Job(_seeded(requests[i]), prompts[i], cancel[i], allowed)
                    for i, allowed in zip(part, filters, strict=True)
                ]
                replies.update(zip(part, self._decode(jobs), strict=True))
        return replies

    def _all_or_error(
        self, requests: Sequence[RetrieveRequest], names: Sequence[str], batch_size: int
    ) -> list[RetrievalResult]:
        """Answer requests in batches; the first error is raised, with the name of its request."""
        if batch_size < 1:
            raise InputError("batch_size", f"must be at least 1, got {batch_size}")
        prompts = []
        for name, request in zip(names, requests, strict=True):  # before anything is decoded
            with named("query", name):
                prompts.append(self._prompt(request))
        # Neighbours in length share a batch: little of it is padding.
        order = sorted(range(len(requests)), key=lambda i: len(prompts[i]))
        never = [None] * len(requests)
        replies: dict[int, RetrievalResult] = {}
        for batch in _chunks(order, batch_size):
            for i, reply in self._answer(requests, {i: prompts[i] for i in batch}, never).items():
                if isinstance(reply, ModelError):
                    raise ModelError(f"{names[i]}: {reply}") from reply
                if not isinstance(reply, RetrievalResult):
                    raise reply
                replies[i] = reply
        return [replies[i] for i in range(len(requests))]

    def _prompt(self, request: RetrieveRequest) -> list[int]:
        """Return the prompt of a request that can be answered: its filter fits the index too."""
        if request.filter is not None:
            self.filters.check(request.restriction)
        template = self.config.prompt(request.prompt)
        prompt = template.encode(self.tokenizer, request.query)
        if not prompt:
            raise InputError("query", "gives no tokens with this prompt template")
        if max(prompt) >= self.model.vocab_size:
            raise InputError(
                "query",
                f"holds token {max(prompt)}, which the model does not know "
                f"(it has {self.model.vocab_size} tokens, its tokenizer {self.tokenizer.vocab_size})",
            )
        longest = self._limits.prompt_tokens(self.trie.max_depth)
        if longest is not None and len(prompt) > longest:
            markup = len(template.encode(self.tokenizer, ""))
            raise InputError(
                "query",
                f"too long: the prompt has {len(prompt)} tokens ({markup} are the template's), "
                f"the model takes at most {longest}",
            )
        return prompt

    def _decode(self, jobs: Sequence[_Job]) -> list[Reply]:
        """Answer compatible requests in one batch; those whose filter allows nothing without the model."""
        asked = [job for job in jobs if not job.is_hopeless]
        decoded = iter(self._decode_all(asked) if asked else [])
        return [nothing_allowed(job.request) if job.is_hopeless else next(decoded) for job in jobs]

    def _decode_all(self, jobs: Sequence[_Job]) -> list[Reply]:
        requests = [job.request for job in jobs]
        room = [self._limits.room(len(job.prompt)) for job in jobs]
        cancel = [job.cancel for job in jobs]
        filters = [job.allowed for job in jobs]
        run: Callable[..., list[Outcome]] = run_beam if requests[0].method == "beam" else run_disc
        started = time.perf_counter()
        try:
            session = self.model.prefill([job.prompt for job in jobs])
            prefilled = time.perf_counter()
            outcomes = run(session, self.trie, self.index, requests, cancel, room, filters)
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                return [ModelError(str(error))]
            # One query's broken logits must not take the others down: answer each alone.
            return [self._decode_all([job])[0] for job in jobs]
        ended = time.perf_counter()
        timings = Timings(
            prefill_ms=(prefilled - started) * 1e3,
            decode_ms=(ended - prefilled) * 1e3,
            total_ms=(ended - started) * 1e3,
        )
        return [replace(o, timings=timings) if isinstance(o, RetrievalResult) else o for o in outcomes]


def _load_model(
    place: str | Path, device: str, dtype: str, num_threads: int | None, trust_remote_code: bool
) -> LanguageModel:
    if num_threads is not None and num_threads < 1:
        raise InputError("num_threads", f"must be at least 1, got {num_threads}")
    from decoding.hf_model import HFLanguageModel  # transformers takes seconds to import

    try:
        return HFLanguageModel.load(place, device, dtype, trust_remote_code, num_threads)
    except DecodingError as error:
        raise ModelError(str(error)) from error


def _seeded(request: RetrieveRequest) -> RetrieveRequest:
    return replace(request, seed=secrets.randbits(_SEED_BITS)) if request.seed is None else request


def _checked_lists(
    allow_ids: Iterable[str] | None, deny_ids: Iterable[str]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Read lists of ids once, however many requests share them."""
    allowed = None if allow_ids is None else checked_ids("allow_ids", allow_ids)
    return allowed, checked_ids("deny_ids", deny_ids)


def _chunks(items: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (items[at : at + size] for at in range(0, len(items), size))
