"""Prompts whose beginning is run once for all: the same answers, kept prefixes, the memory of a query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import normalizers
from torch import Tensor

from genret import Mention, Retriever, RetrieveRequest
from genret.decoding.language_model import KvUsage, PromptPrefix
from genret.decoding.row_trees import NodeSpan, RowLayout, RowTrees
from genret.retrieval.errors import InputError
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import MIN_PREFIX_TOKENS, KvMeter, PrefixStore
from genret.retrieval.prompts import FEW_SHOT, JSON_ANSWER, CheckpointConfig, PromptTemplate
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import KvShare
from tests.checkpoints import END, checkpoint_config, make_checkpoint, make_index, train_tokenizer
from tests.fakes import TableModel, TablePrefix, likely_titles
from tests.table_retrievers import TOKENIZER, assert_alike

QUERIES = ["who wrote hamlet", "a river", "Denmark's prince </s> <title>", "x"]


class Never(PrefixStore):
    """Shares nothing."""

    def get(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        return None


def few_shot_config() -> CheckpointConfig:
    config = checkpoint_config()
    prompts = {
        **config.prompts,
        "few-shot": FEW_SHOT,
        "other": replace(FEW_SHOT, name="other", prefix="b" * 40),
    }
    return replace(config, prompts=prompts, default_prompt="few-shot")


@pytest.fixture(scope="module", params=["llama", "bart"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = make_checkpoint(folder, request.param, config=few_shot_config(), max_positions=512)
    return make_index(tmp_path_factory.mktemp("index"), checkpoint), checkpoint


@pytest.fixture(scope="module")
def sharing(folders: tuple[Path, Path]) -> Iterator[Retriever]:
    with Retriever.open(*folders, device="cpu", dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(sharing: Retriever) -> Retriever:
    """The same index and model, every prompt run as a whole."""
    parts = (sharing.index, sharing.model, sharing.tokenizer, sharing.config)
    return Retriever(*parts, prefixes=Never(sharing.model), ranker=sharing.ranker)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 40, "aggregate": "max"},
        {"exact": True, "beam_size": 2, "length_penalty": 1.0},
        {"method": "disc", "seed": 3},
        {"method": "disc", "seed": 3, "adaptive": True},
        {"method": "disc", "seed": 3, "beam_size": 3},
        {"filter": "kind = 'river'"},
    ],
)
def test_answers_are_those_of_whole_prompts(
    sharing: Retriever, plain: Retriever, options: dict[str, Any]
) -> None:
    shared, whole = (r.retrieve(QUERIES, k=4, **options) for r in (sharing, plain))
    for one, other in zip(shared, whole, strict=True):
        assert_alike(one, other)
        if sharing.model.is_encoder_decoder:
            assert one.kv.shared_prefix_bytes == 0
        else:
            assert one.kv.shared_prefix_bytes > 0
            assert one.kv.peak_bytes < other.kv.peak_bytes
        assert other.kv.shared_prefix_bytes == 0


def test_templates_mix_in_one_call(sharing: Retriever, plain: Retriever) -> None:
    requests = [
        RetrieveRequest("a river", k=3),
        RetrieveRequest("a river", k=3, prompt="other"),
        RetrieveRequest("a river", k=3, prompt="plain"),
        RetrieveRequest("who wrote hamlet", k=3),
        RetrieveRequest("a river", k=3, prompt="other", method="disc", seed=1),
        sharing.mention_request(Mention("Amazon", "rain over the "), RetrieveRequest("-", k=3)),
        RetrieveRequest("x", k=3, prompt="other"),
        RetrieveRequest("x", k=3, exact=True),
    ]
    for one, other in zip(sharing.retrieve_batch(requests), plain.retrieve_batch(requests), strict=True):
        assert_alike(one, other)


class Counted:
    """A model and what it was asked to run."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefixes: list[tuple[int, ...]] = []
        self.batches: list[tuple[int, int]] = []  # prompts, tokens of their prefix
        share, prefill = model.share_prefix, model.prefill

        def counted_share(token_ids: Sequence[int]) -> PromptPrefix | None:
            self.prefixes.append(tuple(token_ids))
            prefix: PromptPrefix | None = share(token_ids)
            return prefix

        def counted_prefill(prompts: Any, prefix: PromptPrefix | None = None) -> Any:
            self.batches.append((len(prompts), 0 if prefix is None else len(prefix.token_ids)))
            return prefill(prompts, prefix)

        monkeypatch.setattr(model, "share_prefix", counted_share)
        monkeypatch.setattr(model, "prefill", counted_prefill)


def table_retriever(folder: Path, tokenizer: TextTokenizer, config: CheckpointConfig) -> Retriever:
    index = Index.open(make_index(folder, tokenizer, rendering=config.rendering))
    return Retriever(index, likely_titles(index), tokenizer, config)


def test_a_beginning_is_run_once_and_requests_that_share_it_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = TOKENIZER
    with table_retriever(tmp_path, tokenizer, few_shot_config()) as retriever:
        counted = Counted(retriever.model, monkeypatch)
        retriever.warm_up()
        shared = tuple(FEW_SHOT.shared_tokens(tokenizer))
        schema = '{"type":"object","properties":{"title":{"type":"string","maxLength":8}}}'
        answers = tuple(JSON_ANSWER.showing(schema).shared_tokens(tokenizer))
        assert counted.prefixes == [shared, answers], "the templates of one token are too short"
        counted.batches.clear()
        prompts = ["few-shot", "other", "plain", "few-shot", "other", "mention"]
        retriever.retrieve_batch([RetrieveRequest("q", prompt=prompt) for prompt in prompts])
        other = tuple(retriever.config.prompt("other").shared_tokens(tokenizer))
        assert counted.prefixes == [shared, answers, other]
        assert sorted(counted.batches) == sorted([(2, len(shared)), (2, len(other)), (2, 0)])
        counted.batches.clear()
        exact = [
            RetrieveRequest("q", prompt="plain", exact=n % 2 == 0, length_penalty=n / 4) for n in range(6)
        ]
        retriever.retrieve_batch(exact)
        assert counted.batches == [(3, 0), (3, 0)], "exact ones apart, whatever their penalties"


def test_a_prompt_that_ends_with_its_beginning_is_run_as_a_whole(tmp_path: Path) -> None:
    """A tokenizer may have no tokens for a query: then nothing would follow the prefix."""
    trained = train_tokenizer()
    trained.normalizer = normalizers.Replace("@", "")
    tokenizer = TextTokenizer(trained, END, "tiny")
    template = PromptTemplate("bare", prefix=FEW_SHOT.prefix)
    prompts = {**checkpoint_config().prompts, "bare": template}
    config = replace(checkpoint_config(), prompts=prompts, default_prompt="bare")
    with table_retriever(tmp_path, tokenizer, config) as retriever:
        assert template.encode(tokenizer, "@") == template.shared_tokens(tokenizer)
        nothing, something = retriever.retrieve(["@", "@a"], k=3)
    assert len(nothing.candidates) == len(something.candidates) == 3


def test_indexes_of_one_model_share_its_prefixes(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    index, checkpoint = folders
    first = Retriever.open(index, checkpoint, device="cpu")
    second = first.open_another(index)
    assert second.prefixes is first.prefixes
    (before,) = second.retrieve("a river", k=3)
    assert len(first.prefixes) == 1
    second.close()
    assert len(first.prefixes) == 1, "others share them"
    (after,) = first.retrieve("a river", k=3)
    assert_alike(before, after)
    first.close()


class Session:
    """Each query holds 100 bytes and 10 for every step; growing takes twice what is held."""

    root_logits = torch.zeros(1, 4)

    def __init__(self, num_queries: int) -> None:
        self.num_queries = num_queries
        self.steps = 0
        self.keeps_levels = False

    @property
    def usage(self) -> KvUsage:
        held = self.num_queries * (100 + 10 * self.steps)
        return KvUsage(
            held_bytes=held,
            peak_bytes=held * (2 if self.steps else 1),
            per_branch_bytes=self.num_queries * 1000 * self.steps,
            shared_bytes=77,
            num_collections=self.steps // 2,
        )

    def keep_levels(self) -> None:
        self.keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        self.steps += 1
        return torch.zeros(*parents.shape, 4)

    def tree_writer(self, trees: RowTrees) -> Session:
        return self

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        self.steps += 1
        return torch.zeros(sum(span.end - span.first for span in spans), 4)

    def select(self, queries: Sequence[int], branches: bool = False) -> Session:
        return Session(len(queries))


def test_every_query_answers_for_its_part_of_every_session() -> None:
    inner = Session(4)
    meter = KvMeter(inner, 4)
    session = meter.session
    nothing = torch.zeros((4, 1), dtype=torch.int64)
    assert meter.share(0) == KvShare(100, 0, 77, 0)
    session.keep_levels()
    assert inner.keeps_levels
    assert session.root_logits is inner.root_logits
    for _ in range(3):
        assert session.step(nothing, nothing).shape == (4, 1, 4)
    assert session.usage == inner.usage
    assert meter.share(3) == KvShare(260, 3000, 77, 1)
    later = session.select([3, 1])
    for _ in range(5):
        later.step(nothing[:2], nothing[:2])
    last = later.select([1])  # query 1 of the batch
    last.step(nothing[:1], nothing[:1])
    assert meter.share(0) == KvShare(260, 3000, 77, 1)
    # The first session stays while the later one has its peak: 130 and 300 bytes of each query.
    assert meter.share(3) == KvShare(430, 5000, 77, 3)
    assert meter.share(1) == KvShare(430, 5000, 77, 3)


def test_whole_trees_are_metered_like_steps() -> None:
    inner = Session(2)
    meter = KvMeter(inner, 2)
    trees = RowLayout.of([[[1, 2, 3]], [[1, 2]]], 4).trees
    writer = meter.session.tree_writer(trees)
    assert meter.share(0).peak_bytes == 100
    assert writer.write([trees.span(0), NodeSpan(1, 2, 3)]).shape == (3, 4)
    assert meter.share(0).peak_bytes == 220
    assert inner.steps == 1


BYTES_PER_TOKEN = 10


class Sharing(TableModel):
    """Counts what it runs; a prefix takes ten bytes a token. It shares nothing that begins with 0."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(8, lambda prompt, written: torch.zeros(8))
        self.ran: list[tuple[int, ...]] = []
        self._before = before

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        self.ran.append(tuple(token_ids))
        self._before()
        if token_ids[0] == 0:
            return None
        return TablePrefix(tuple(token_ids), BYTES_PER_TOKEN * len(token_ids))


def tokens(first: int, count: int = 20) -> list[int]:
    return [first] * count


def test_a_prefix_is_run_once_and_kept_unless_it_is_short() -> None:
    model = Sharing()
    store = PrefixStore(model)
    assert store.get([]) is None
    assert store.get(tokens(1, MIN_PREFIX_TOKENS - 1)) is None
    first = store.get(tokens(1))
    assert first is not None
    assert store.get(tuple(tokens(1))) is first
    assert store.get(tokens(2, MIN_PREFIX_TOKENS)) is not None
    assert [store.get(tokens(0)) for _ in range(2)] == [None, None], "that nothing is shared is kept, too"
    assert model.ran == [tuple(tokens(1)), tuple(tokens(2, MIN_PREFIX_TOKENS)), tuple(tokens(0))]
    assert (len(store), store.num_bytes) == (3, 200 + 10 * MIN_PREFIX_TOKENS)
    store.clear()
    assert (len(store), store.num_bytes) == (0, 0)


@pytest.mark.parametrize("max_bytes", [0, 100])
def test_the_last_one_is_kept_whatever_its_size(max_bytes: int) -> None:
    model = Sharing()
    store = PrefixStore(model, max_bytes)
    for first in (1, 1, 2, 2):
        assert store.get(tokens(first)) is not None
    assert len(model.ran) == 2
    assert (len(store), store.num_bytes) == (1, 200)


def test_of_many_threads_one_runs_a_prefix_and_all_have_it() -> None:
    hold = threading.Event()
    model = Sharing(before=lambda: None if hold.wait(600) else pytest.fail("never let go"))
    store = PrefixStore(model)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(store.get, tokens(1 + n % 2)) for n in range(16)]
        hold.set()
        found = [future.result(timeout=600) for future in asked]
    assert sorted(model.ran) == [tuple(tokens(1)), tuple(tokens(2))]
    assert {id(prefix) for prefix in found[::2]} == {id(store.get(tokens(1)))}
    assert {id(prefix) for prefix in found[1::2]} == {id(store.get(tokens(2)))}


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None])
def test_a_bound_that_is_none(wrong: int) -> None:
    with pytest.raises(InputError, match="prefix_bytes: must be an integer of at least 0"):
        PrefixStore(Sharing(), wrong)
