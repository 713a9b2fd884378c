"""Messages made of the descriptors at a server with a real model and a real index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.service.configuration.server_config import IndexSpec, ModelSpec
from genret.service.serving.models import IndexOpener
from tests.service.any_message import any_bytes, messages
from tests.service.fuzzed_server import LEGAL, METHODS, RETRIEVAL, Code, Fuzzed, fuzzed, many, some
from tests.service.running_server import open_all, retriever_of
from tests.service.tiny_assets import make_checkpoint, make_index

STREAMS = {name for name in RETRIEVAL if METHODS[name].client_streaming}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = make_checkpoint(folder / "checkpoint")
    index = make_index(folder / "index", checkpoint)
    opener = IndexOpener(ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1))
    indexes = open_all(opener, IndexSpec("tiny", index))
    with fuzzed(indexes=indexes) as found:
        yield found
        found.check_idle()
    retriever_of(indexes["tiny"]).close()


def explore(server: Fuzzed, name: str, budget: settings) -> set[Code]:
    """Send examples to a method; return the statuses of calls and of items that were seen."""
    seen: set[Code] = set()
    kind = METHODS[name].input_type

    @budget
    @given(st.lists(any_bytes(kind), min_size=1, max_size=6 if name in STREAMS else 1))
    def send(raws: list[bytes]) -> None:
        outcome = server.check(name, *raws)
        seen.update([outcome.code, *outcome.items])

    send()
    server.check_idle()
    return seen


def give_up(server: Fuzzed, name: str, budget: settings) -> None:
    """Cancel calls, or let their deadlines pass, while the model is at them."""

    @budget
    @given(
        st.lists(messages(METHODS[name].input_type), min_size=1, max_size=6 if name in STREAMS else 1),
        st.none() | st.integers(0, 2),
        st.sampled_from([20.0, 0.1, 0.03, 0.01, 0.003, 0.001]),
    )
    def send(requests: list[Message], after: int | None, timeout: float) -> None:
        raws = [request.SerializeToString() for request in requests]
        outcome = server.send(name, *raws, cancel_after=after, timeout=timeout)
        assert outcome.code in LEGAL, outcome

    send()
    server.check_idle()


@pytest.mark.parametrize("name", RETRIEVAL)
def test_some_messages_to_a_model(server: Fuzzed, name: str) -> None:
    assert Code.INVALID_ARGUMENT in explore(server, name, some(12))


@pytest.mark.parametrize("name", RETRIEVAL)
def test_some_calls_of_a_model_are_given_up(server: Fuzzed, name: str) -> None:
    give_up(server, name, some(6))


@pytest.mark.soak
@pytest.mark.parametrize("name", RETRIEVAL)
def test_many_messages_to_a_model(server: Fuzzed, name: str) -> None:
    explore(server, name, many(12))


@pytest.mark.soak
@pytest.mark.parametrize("name", RETRIEVAL)
def test_many_calls_of_a_model_are_given_up(server: Fuzzed, name: str) -> None:
    give_up(server, name, many(6))
