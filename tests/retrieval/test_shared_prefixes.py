"""Templates whose beginning is run once for all: the same answers, fewer tokens, any mixture in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from genret import Mention, RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.language_model import PromptPrefix
from genret.retrieval.index.reader import Index
from genret.retrieval.kv_memory import PrefixStore
from genret.retrieval.prompts import FEW_SHOT, JSON_ANSWER, CheckpointConfig, PromptTemplate
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import END, checkpoint_config, make_checkpoint, make_index, train_tokenizer
from tests.fakes import likely_titles

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


def same(one: Any, other: Any) -> None:
    assert isinstance(one, RetrievalResult)
    assert isinstance(other, RetrievalResult)
    assert [(c.entity_id, c.surface) for c in one.candidates] == [
        (c.entity_id, c.surface) for c in other.candidates
    ]
    assert [c.logprob for c in one.candidates] == pytest.approx(
        [c.logprob for c in other.candidates], abs=1e-4
    )
    assert (one.certified, one.seed, one.num_draws) == (other.certified, other.seed, other.num_draws)
    assert (one.mass or 0.0) == pytest.approx(other.mass or 0.0, rel=1e-4)


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
        same(one, other)
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
        same(one, other)


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
    tokenizer = TextTokenizer(train_tokenizer(), END, "tiny")
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
    same(before, after)
    first.close()
