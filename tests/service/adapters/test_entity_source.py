"""What adapters share: a local retriever and a server give the same answers, from any thread and loop."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention, RetrievalResult
from genret.service.adapters.entity_source import EntitySource, asked
from genret.service.client import CallError

ROOT = Path(__file__).resolve().parents[3]
BEAM = {"k": 3, "method": "beam"}
QUERIES = ("who wrote hamlet", "a river", "the city of light")


def ids(found: RetrievalResult) -> list[str]:
    return [one.entity_id for one in found.candidates]


def expected(retriever: Retriever, query: str) -> list[str]:
    return ids(retriever.retrieve(query, k=3, method="beam")[0])


def test_both_places_answer_what_the_retriever_answers(place: dict[str, Any], retriever: Retriever) -> None:
    source = EntitySource(**place)
    mentions = [Mention("Paris", "we flew to "), Mention("the Nile", "along ", " by boat")]
    try:
        for query in QUERIES:
            assert ids(source.retrieve(asked(query, BEAM))) == expected(retriever, query)
            # Every run has an event loop of its own, and a client of the last one's would fail.
            assert ids(asyncio.run(source.aretrieve(asked(query, BEAM)))) == expected(retriever, query)
        linked = source.link(mentions * 40, BEAM)  # more than go in one call
        assert [ids(one) for one in linked] == [ids(one) for one in retriever.link(mentions, **BEAM)] * 40
    finally:
        source.close()
    assert ids(source.retrieve(asked("a river", BEAM))) == expected(retriever, "a river"), "opened anew"
    source.close()


async def test_many_tasks_share_a_source(place: dict[str, Any], retriever: Retriever) -> None:
    source = EntitySource(**place)
    found = await asyncio.gather(*(source.aretrieve(asked(query, BEAM)) for query in QUERIES * 4))
    assert [ids(one) for one in found] == [expected(retriever, query) for query in QUERIES] * 4
    source.close()


def test_threads_and_sources_share_a_retriever(retriever: Retriever) -> None:
    sources = [EntitySource(retriever) for _ in range(3)]
    requests = [asked(query, BEAM) for query in QUERIES] * 6
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(sources[i % 3].retrieve, one) for i, one in enumerate(requests)]
        assert [ids(one.result()) for one in found] == [expected(retriever, q) for q in QUERIES] * 6
    sources[0].close()
    assert expected(retriever, "a river"), "who opened a retriever closes it"


def test_a_copy_opens_the_index_anew(place: dict[str, Any], retriever: Retriever) -> None:
    source = EntitySource(**place)
    source.open()
    copied = pickle.loads(pickle.dumps(source))
    source.close()
    assert copied.saved() == source.saved()
    assert ids(copied.retrieve(asked("a river", BEAM))) == expected(retriever, "a river")
    copied.close()
    with pytest.raises(InputError, match="index: must be a directory to be saved or copied, got an open"):
        pickle.dumps(EntitySource(retriever))


def test_a_text_column_that_the_index_lacks_is_refused_when_it_is_opened(
    place: dict[str, Any], retriever: Retriever
) -> None:
    refused = pytest.raises(InputError, match=r"^knd: is no column of the index .*; did you mean kind\?")
    with refused:
        EntitySource(retriever, text_column="knd")
    source = EntitySource(**place, text_column="knd")
    with refused:
        source.open()
        assert source.address is not None
        source.text_of(source.retrieve(asked("a river", BEAM)).candidates[0])
    source.close()


def test_a_forked_process_is_told_and_does_not_wait(retriever: Retriever, monkeypatch: Any) -> None:
    source = EntitySource(retriever)
    monkeypatch.setattr(os, "getpid", lambda: 1)  # forking this process, with its threads, is what fails
    with pytest.raises(GenretError, match="used before its process was forked"):
        source.retrieve(asked("a river", BEAM))


def test_errors_of_queries_are_those_of_the_place(place: dict[str, Any]) -> None:
    source = EntitySource(**place)
    misfit = asked("a river", {**BEAM, "filter": "year = 3"})
    for ask in (source.retrieve, lambda one: asyncio.run(source.aretrieve(one))):
        with pytest.raises((InputError, CallError), match="unknown column 'year'"):
            ask(misfit)
    with pytest.raises((InputError, CallError), match="must not be empty"):
        source.link([Mention("Paris"), Mention(" ")], BEAM)
    source.close()


NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "index: an index directory or the address of a server is needed, got neither"),
        ({"index": 3}, "index: must be a directory or an open retriever, got 3"),
        (
            {"index": "i", "connection": {"timeout_s": 3}},
            "connection: needs the address of a server, got none",
        ),
        (
            {"index": Path("i"), "address": NOBODY},
            f"index: must be the name of an index at {NOBODY}, got Posix",
        ),
        ({"model": "m", "address": NOBODY}, "model: needs an index directory to go with, got 'm'"),
        ({"address": "nobody"}, "address: "),
        ({"address": NOBODY, "connection": {"token": "t"}}, "connection: a token stands in GENRET_TOKEN"),
        (
            {"address": NOBODY, "connection": {"time": 3}},
            r"time: there is no such .*; did you mean timeout_s\?",
        ),
        ({"address": NOBODY, "connection": {"timeout_s": -1}}, "timeout_s: must be a positive number"),
    ],
)
def test_what_does_not_go_together_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        EntitySource(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 3}, r"beam: is no option of a request; did you mean beam_size\?"),
        ({"zzzz": 3}, "zzzz: is no option of a request; there are: adaptive, "),
        ({"k": 0}, r"k: must be in \[1, 1000\], got 0"),
        ({"filter": "kind ="}, "filter: at character 7: expected a value"),
    ],
)
def test_options_are_checked_when_an_adapter_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        asked("-", {**BEAM, **options})


def test_a_restriction_goes_beside_the_filter_of_the_options() -> None:
    asks = asked("-", {**BEAM, "filter": "kind = 'a' or kind = 'b'"}, "year = 3 or year = 4")
    assert asks.filter == "(kind = 'a' or kind = 'b') and (year = 3 or year = 4)"


def test_the_token_of_the_environment_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRET_TOKEN", "abc")
    metadata = {"metadata": [["application", "genret"]], "tls_ca": "ca.pem"}
    source = EntitySource(address="genret.example:443", connection=metadata)
    assert source._options.token == "abc"
    assert source._options.metadata == (("application", "genret"),)
    assert source._options.tls_ca == Path("ca.pem")
    assert "abc" not in str(source.saved())
    with pytest.raises(InputError, match=r"^token: 'genret.example' is another machine"):
        EntitySource(address="genret.example:443")


LIBRARIES = {
    "langchain": ("langchain_core", "langchain"),
    "llama_index": ("llama_index.core", "llama-index"),
    "haystack": ("haystack", "haystack"),
    "spacy": ("spacy", "spacy"),
}


@pytest.mark.parametrize("module", LIBRARIES)
def test_a_missing_library_is_told_with_its_extra(module: str) -> None:
    package, extra = LIBRARIES[module]
    code = f"import sys; sys.modules[{package!r}] = None; import genret.service.adapters.{module}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith(
        f"this needs the package {package!r}, which is not installed; "
        f"install it with: pip install 'generative-retrieval[{extra}]'"
    )


def test_who_asks_a_server_loads_no_model() -> None:
    code = "import sys; import genret.service.adapters.entity_source; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
