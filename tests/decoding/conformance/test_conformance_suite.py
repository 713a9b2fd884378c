"""Every verified architecture passes the examination; of one broken on purpose it names the layer."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM

from genret.decoding.conformance.examination import (
    Examination,
    ExamineOptions,
    PlanError,
    Report,
    examine,
    make_plan,
    prompt_lengths,
)
from genret.decoding.conformance.scenarios import SCENARIOS
from genret.decoding.errors import UnsupportedModelError
from genret.decoding.model import tree_attention
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.model_loading import load_config, load_weights
from genret.decoding.model.self_check import Difference, Tolerance, exactly, random_tree
from genret.decoding.model.token_tree import BranchStep
from genret.decoding.model.tree_attention import PromptPass
from genret.decoding.model.whole_trees import TreeBlock
from tests.verified_architectures import ARCHITECTURES, COMMON, build

SMALL = ExamineOptions(trees=2, depth=4, beams=3, prompt_tokens=16)
WINDOW = "sliding attention, window 6"


def found_in(report: Report) -> Examination:
    assert report.examination is not None
    return report.examination


def first_different(report: Report) -> tuple[int, str]:
    """Number and kind of the first layer that differs."""
    assert report.verdict == "differs"
    first = found_in(report).first_different
    assert first is not None
    return first.number, first.kind


def replace(patch: pytest.MonkeyPatch, of: Any, name: str, other: Callable[..., Any]) -> None:
    """Replace a function; the other one is given it before its arguments."""
    plain = getattr(of, name)
    patch.setattr(of, name, lambda *args, **kwargs: other(plain, *args, **kwargs))


def blind_to_windows(patch: pytest.MonkeyPatch) -> None:
    replace(patch, BranchStep, "sights", lambda plain, step, window: plain(step, None))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_verified_architectures_are_exact(name: str) -> None:
    report = examine(build(name, torch.float64), SMALL)
    found = found_in(report)
    assert report.verdict == "exact", report.to_json()
    assert found.overall.largest < 1e-9
    assert report.facts.standing == "verified"
    assert list(found.scenarios) == list(SCENARIOS)
    branches = {name: one.branches for name, one in found.scenarios.items()}
    every = branches["prompts of mixed lengths"]
    assert branches.pop("with a shared prefix") == (0 if build(name).config.is_encoder_decoder else every)
    assert branches.pop("selection in the middle") in range(1, every)
    assert branches.pop("whole trees") > every
    assert set(branches.values()) == {every}
    assert len(found.layers) == 3
    assert max(layer.difference.largest for layer in found.layers) < 1e-9
    assert found.first_different is None
    assert found.rounding.branches
    assert found.rounding.largest < 1e-9


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "bart", "t5"])
def test_the_last_layer_reads_as_the_model_answers(name: str) -> None:
    """The last layer differs by what the logits differ by, also where a model scales them."""
    found = found_in(examine(build(name), SMALL))
    last = found.layers[-1].difference
    assert last.branches == found.overall.branches
    assert last.spread == pytest.approx(found.overall.spread, rel=0.1)
    assert last.largest == pytest.approx(found.overall.largest, rel=0.5)


@pytest.mark.parametrize(("name", "layer"), [("gemma3", 0), ("qwen2-mixed-windows", 1)])
def test_windows_that_trees_ignore_are_found_in_the_first_layer_that_has_one(
    name: str, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind_to_windows(monkeypatch)
    assert first_different(examine(build(name, torch.float64), SMALL)) == (layer, WINDOW)


@pytest.mark.parametrize("of", [BranchStep, tree_attention])
def test_sinks_that_trees_ignore_are_found(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(plain: Any, *arguments: Any) -> Tensor:
        *others, rule = arguments
        return plain(*others, dataclasses.replace(rule, sinks=None))

    replace(monkeypatch, of, "attend", without)
    report = examine(build("gpt_oss", torch.float64), SMALL)
    assert first_different(report)[0] == 0
    assert found_in(report).overall.largest > 1e-2


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_a_plain_pass_of_an_adapted_model_is_the_models_own(name: str) -> None:
    """Attention over prompts outside of trees: padding on the left, windows, caps and sinks."""
    own, adapted = build(name, torch.float64), build(name, torch.float64)
    HFLanguageModel(adapted)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 61, (2, 14), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with torch.no_grad(), exactly(torch.float64):
        expected = own(input_ids=ids, attention_mask=mask).logits
        got = adapted(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-9)


def test_gpt_oss_as_it_is_published_is_computed_in_bfloat16(tmp_path: Path) -> None:
    """Experts in MXFP4 (two numbers a byte, one exponent for 32) are read, and unpacked without a kernel."""
    build("gpt_oss", torch.bfloat16, changes={"intermediate_size": 32}).save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, read, written = weights.pop(name).shape
        shape = (experts, written, read // 32)
        weights[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=generator).to(torch.uint8)
        weights[f"{name}_scales"] = torch.full(shape, 124, dtype=torch.uint8)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_weights(
        tmp_path, load_config(tmp_path, False), torch.device("cpu"), "bfloat16", trust_remote_code=False
    )
    assert model.dtype == torch.bfloat16
    assert examine(model, SMALL).verdict == "exact"


def _alibi_in_layer_one(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Causal attention whose second layer prefers what is near: what the tree knows nothing of."""
    length = query.shape[2]
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    behind = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if module.layer_idx == 1:
        scores = scores - 0.5 * behind
    scores = scores.masked_fill(behind < 0, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def test_a_bias_of_the_models_own_is_found_in_its_layer() -> None:
    AttentionInterface.register("alibi_in_layer_one", _alibi_in_layer_one)
    model = build("llama-gqa", torch.float64)
    model.set_attn_implementation("alibi_in_layer_one")
    report = examine(model, SMALL)
    assert first_different(report)[0] == 1
    assert found_in(report).layers[0].difference.largest < 1e-9
    assert found_in(report).rounding.largest < 1e-9


def _with_other_collections(plain: Any, session: TreeSession) -> None:
    plain(session)
    for layer in session.cache.layers:
        layer.tail[0].add_(1.0)


def _without_the_first_token(plain: Any, segment: Any, window: Any) -> Any:
    return tuple(part[:, :, 1:] for part in segment)


def _in_another_order(plain: Any, session: TreeSession, rows: Any, branches: Any) -> Any:
    return plain(session, rows[::-1], branches)


def _below_neighbours(
    plain: Any, session: TreeSession, parents: Tensor, tokens: Tensor, level: int | None = None
) -> Tensor:
    """Levels that are kept."""
    parents = parents if level is None else (parents - 1).clamp(min=0)
    return plain(session, parents, tokens, level)


def _scaled(plain: Any, block: TreeBlock, query: Tensor, *others: Any) -> Any:
    return plain(block, query * 1.01, *others)


def _cut(plain: Any, model: HFLanguageModel, prompts: Any, prefix: Any = None) -> TreeSession:
    """Single prompts."""
    return plain(model, [prompts[0][1:]] if len(prompts) == 1 else prompts, prefix)


def _of_one_length(plain: Any, lengths: Any, *others: Any) -> Any:
    return plain([max(lengths)] * len(lengths), *others)


@pytest.mark.parametrize(
    ("of", "name", "other", "spoiled"),
    [
        (HFLanguageModel, "prefill", _cut, {"one prompt per session"}),
        (PromptPass, "of", _of_one_length, SCENARIOS.keys() - {"one prompt per session"}),
        (TreeSession, "collect", _with_other_collections, {"with collections"}),
        (tree_attention, "_seen_prefix", _without_the_first_token, {"with a shared prefix"}),
        (TreeSession, "select", _in_another_order, {"selection in the middle"}),
        (TreeSession, "step", _below_neighbours, {"levels kept"}),
        (TreeBlock, "attend", _scaled, {"whole trees"}),
    ],
)
def test_each_way_of_writing_finds_what_breaks_it(
    of: Any, name: str, other: Callable[..., Any], spoiled: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other one does, so that none of them could be left out."""
    replace(monkeypatch, of, name, other)
    report = examine(build("llama-gqa", torch.float64), SMALL)
    assert report.verdict == "differs"
    found = {name: one.largest for name, one in found_in(report).scenarios.items()}
    assert {name for name, largest in found.items() if largest > 1e-4} == spoiled
    assert {name for name, largest in found.items() if largest < 1e-9} == SCENARIOS.keys() - spoiled


def test_of_a_large_vocabulary_layers_are_read_for_some_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layer is named as with all tokens, and exact models read as exact."""
    changes = {"vocab_size": 5000}
    report = examine(build("qwen2-mixed-windows", torch.float64, changes=changes), SMALL)
    assert report.verdict == "exact"
    assert max(layer.difference.largest for layer in found_in(report).layers) < 1e-9
    blind_to_windows(monkeypatch)
    report = examine(build("qwen2-mixed-windows", torch.float64, changes=changes), SMALL)
    assert first_different(report) == (1, WINDOW)


def test_what_tree_decoding_raises_is_the_finding() -> None:
    torch.manual_seed(0)
    config = transformers.GPTNeoConfig(
        vocab_size=61,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=6,
        max_position_embeddings=64,
    )
    report = examine(AutoModelForCausalLM.from_config(config), SMALL)
    assert report.verdict == "failed"
    assert "does not let its attention be replaced" in (found_in(report).failure or "")
    assert report.facts.layers == ("full attention", "local attention, window 6")


def test_a_refused_architecture_can_be_examined_and_stays_refused() -> None:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **{**COMMON, "num_key_value_heads": 2, "num_local_experts": 2, "sliding_window": 6}
    )
    report = examine(AutoModelForCausalLM.from_config(config), SMALL)
    assert report.verdict == "refused"
    assert report.facts.refusal is not None
    assert found_in(report).tolerance.holds(found_in(report).overall)


@pytest.mark.parametrize(
    ("window", "positions", "prompt_tokens", "uncovered"),
    [
        (600, 1200, 48, ("the window of 600 tokens: prompts end at 48, --prompt-tokens 616 goes behind it",)),
        (50, 200, 66, ()),
    ],
)
def test_short_windows_are_covered_and_long_ones_said_to_be_uncovered(
    window: int, positions: int, prompt_tokens: int, uncovered: tuple[str, ...]
) -> None:
    changes = {"sliding_window": window, "max_position_embeddings": positions}
    report = examine(build("mistral-window", changes=changes), ExamineOptions(trees=1, depth=2, beams=2))
    plan = found_in(report).plan
    assert (plan.prompt_tokens, plan.uncovered) == (prompt_tokens, uncovered)


def test_more_positions_than_the_model_has_are_refused() -> None:
    with pytest.raises(PlanError, match=r"prompt_tokens must be in \[8, 90\] for this model, got 91"):
        examine(build("gpt2"), ExamineOptions(prompt_tokens=91))
    with pytest.raises(PlanError, match="depth must be below 96"):
        examine(build("gpt2"), ExamineOptions(depth=96))
    with pytest.raises(PlanError, match="trees must be at least 1, got 0"):
        ExamineOptions(trees=0)


def test_the_same_seed_finds_the_same() -> None:
    first, second = (examine(build("gemma2"), SMALL).to_json() for _ in range(2))
    assert first == second
    third = examine(build("gemma2"), ExamineOptions(1, 2, 4, 3, 16)).to_json()
    assert third["examination"]["overall"] != first["examination"]["overall"]


def test_a_plain_pass_that_fails_is_named() -> None:
    model = build("llama-gqa")
    model.lm_head = nn.Linear(7, 61)
    with pytest.raises(
        UnsupportedModelError, match="'llama' cannot be examined: a plain forward pass failed"
    ):
        examine(model, SMALL)


def test_progress_reaches_its_end() -> None:
    seen: list[tuple[str, int, int]] = []
    examine(build("llama-gqa"), SMALL, lambda *news: seen.append(news))
    for stage in ("plain passes", "token trees"):
        steps = [(done, total) for name, done, total in seen if name == stage]
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1]


@settings(deadline=None, max_examples=60)
@given(depth=st.integers(1, 6), branches=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_every_branch_hangs_below_a_real_one_and_leads_to_a_leaf(
    depth: int, branches: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree([9, 4, 6], 3, depth, branches, torch.arange(5, 30), generator)
    assert [len(prompt) for prompt in tree.prompts] == [9, 4, 6]
    assert len({prompt[:3] for prompt in tree.prompts}) == 1
    for level in range(1, depth + 1):
        real = tree.columns(level)
        assert real[:, 0].all()
        for query, column in real.nonzero().tolist():
            columns = tree.ancestry(query, level, column)
            assert len(columns) == level + 1
            assert all(tree.columns(above)[query, place] for above, place in enumerate(columns))
            path = tree.path(query, level, column)
            assert path[-1] == tree.tokens[level - 1, query, column]
            assert path[:-1] == tree.path(query, level - 1, columns[-2])
    reached = {
        (query, level, place)
        for query, leaf_depth, column in tree.leaves()
        for level, place in enumerate(tree.ancestry(query, leaf_depth, column))
    }
    real = {
        (query, level, column)
        for level in range(depth + 1)
        for query, column in tree.columns(level).nonzero().tolist()
    }
    assert reached == real


def test_differences_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    got = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    expected = got + 0.01 * torch.randn(6, 11, generator=generator, dtype=torch.float64)
    together = Difference.between(got, expected)
    parts = Difference.between(got[:2], expected[:2]) + Difference.between(got[2:], expected[2:])
    assert parts.branches == together.branches == 6
    assert parts.largest == together.largest
    assert parts.relative == pytest.approx(together.relative)
    assert parts.agreeing == together.agreeing
    logprobs = expected.log_softmax(-1)
    apart = (got.log_softmax(-1) - logprobs).norm() / (logprobs - logprobs.mean(-1, keepdim=True)).norm()
    assert together.relative == pytest.approx(float(apart))


def test_nan_is_never_explained_by_rounding() -> None:
    broken = Difference.between(torch.full((1, 3), math.nan), torch.zeros(1, 3))
    fine = Difference.between(torch.zeros(1, 3), torch.zeros(1, 3))
    for difference in (broken + fine, fine + broken):
        assert math.isnan(difference.largest)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            assert not Tolerance.strict(dtype).holds(difference)
            others = {"fine": fine, "broken": difference, "far": Difference(1, 9.0, 9.0, 1.0)}
            assert Tolerance.strict(dtype).worst(others) == "broken"


@pytest.mark.parametrize(
    ("largest", "relative", "holds"),
    [(9e-5, 1e-3, True), (2e-4, 1e-6, True), (2e-4, 1e-4, False), (2e-3, 1e-6, False)],
)
def test_float32_forgives_a_badly_conditioned_branch(largest: float, relative: float, holds: bool) -> None:
    difference = Difference(10, largest, squared=relative**2, spread=1.0, agreeing=10)
    assert Tolerance.strict(torch.float32).holds(difference) is holds
    assert not Tolerance.strict(torch.float64).holds(difference)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), number=st.integers(0, 3), longest=st.integers(8, 70))
def test_prompts_are_longer_than_what_they_share(seed: int, number: int, longest: int) -> None:
    plan = make_plan(ExamineOptions(prompt_tokens=longest), [], None, None, shared_positions=True)
    lengths, prefix = prompt_lengths(plan, number, torch.Generator().manual_seed(seed))
    assert max(lengths) == longest
    assert 0 < prefix < min(lengths)
