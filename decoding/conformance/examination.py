"""Examines a model: every way of writing random trees, against plain passes, down to the layers.

A `Plan` has prompts long enough to reach behind windows and names what stays uncovered; a `Report` holds the
findings, for people and for programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from genret.decoding.conformance.layer_reader import Expected, LayerReader, expect
from genret.decoding.conformance.scenarios import SCENARIOS, Driver, Outcome, replay
from genret.decoding.errors import UnsupportedModelError
from genret.decoding.model import architectures
from genret.decoding.model.architectures import LayerKind, describe_positions, layer_kinds, writable_tokens
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.self_check import Difference, RandomTree, Tolerance, exactly, random_tree

Progress = Callable[[str, int, int], None]


def standing(config: PreTrainedConfig) -> tuple[Standing, str | None]:
    """Return how an architecture is treated at loading, and the reason if it is refused."""
    try:
        verified = architectures.check_supported(config)
    except UnsupportedModelError as error:
        return "refused", str(error)
    return ("verified" if verified else "checked when loaded"), None


def examine(
    model: PreTrainedModel,
    options: ExamineOptions,
    progress: Progress = lambda stage, done, total: None,
) -> Report:
    """Compare token-tree decoding of a model with plain forward passes; refused architectures too.

    The model's attention is replaced, as `HFLanguageModel` does it.

    Args:
        model: Weights in place, with its own attention.
        options: Sizes of the random trees.
        progress: Called with a stage, the steps done and their number.

    Raises:
        UnsupportedModelError: a plain forward pass fails, or the model lacks a head or a start token.
        PlanError: the options ask for more positions than the model has.
    """
    model.eval()  # type: ignore[no-untyped-call]
    facts, kinds = _facts(model)
    decoder_prompt = architectures.decoder_prompt(model) if model.config.is_encoder_decoder else ()
    plan = _plan(model, options, kinds, len(decoder_prompt))
    generator = torch.Generator().manual_seed(options.seed)
    trees = _draw(model, options, plan, generator)
    reader = LayerReader(model) if kinds else None
    with exactly(model.dtype):
        expected = _run_plain(model, decoder_prompt, trees, reader, progress)
        findings, failure = _run_trees(model, trees, expected, reader, generator, progress)
    tolerance = Tolerance.strict(model.dtype)
    return Report(
        facts,
        Examination(
            options=options,
            plan=plan,
            tolerance=tolerance,
            rounding=sum((one.answers.among_themselves for one in expected), Difference()),
            scenarios={name: one.logits for name, one in findings.items()},
            layers=_by_layer(findings, kinds, tolerance),
            failure=failure,
        ),
    )


def _facts(model: PreTrainedModel) -> tuple[ModelFacts, tuple[LayerKind, ...]]:
    kinds = layer_kinds(model)
    how, refusal = standing(model.config)
    facts = ModelFacts(
        model_type=model.config.model_type,
        standing=how,
        refusal=refusal,
        parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        own_attention=architectures.text_config(model.config)._attn_implementation,
        positions=describe_positions(model),
        layers=tuple(kind.name for kind in kinds),
    )
    return facts, kinds


def _plan(
    model: PreTrainedModel, options: ExamineOptions, kinds: tuple[LayerKind, ...], start_tokens: int
) -> Plan:
    limit = architectures.position_limit(model)
    if not model.config.is_encoder_decoder:
        return make_plan(options, (kind.window for kind in kinds), limit, limit, shared_positions=True)
    title_limit = None if limit is None else limit - start_tokens
    prompt_limit = architectures.encoder_position_limit(model)
    return make_plan(options, (), prompt_limit, title_limit, shared_positions=False)


def _draw(
    model: PreTrainedModel, options: ExamineOptions, plan: Plan, generator: torch.Generator
) -> list[RandomTree]:
    allowed = writable_tokens(model)
    trees = []
    for number in range(options.trees):
        lengths, prefix = prompt_lengths(plan, number, generator)
        trees.append(random_tree(lengths, prefix, options.depth, options.beams, allowed, generator))
    return trees


def _run_plain(
    model: PreTrainedModel,
    decoder_prompt: tuple[int, ...],
    trees: list[RandomTree],
    reader: LayerReader | None,
    progress: Progress,
) -> list[Expected]:
    total, done = sum(len(list(tree.leaves())) for tree in trees), 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress("plain passes", done, total)

    progress("plain passes", 0, total)
    try:
        return [expect(model, decoder_prompt, tree, reader, tick) for tree in trees]
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {model.config.model_type!r} cannot be examined: a plain forward pass failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _run_trees(
    model: PreTrainedModel,
    trees: list[RandomTree],
    expected: list[Expected],
    reader: LayerReader | None,
    generator: torch.Generator,
    progress: Progress,
) -> tuple[dict[str, Outcome], str | None]:
    """Write all trees in all ways, until something is raised."""
    findings: dict[str, Outcome] = {}
    at = "preparing the model"
    total, done = len(trees) * len(SCENARIOS), 0
    try:
        wrapped = HFLanguageModel(model, checked=False)
        for at, scenario in SCENARIOS.items():
            for tree, wanted in zip(trees, expected, strict=True):
                progress("token trees", done, total)
                driver = Driver(wrapped, tree, reader, generator)
                before = findings.get(at, Outcome(Difference(), ()))
                findings[at] = before + replay(driver, scenario, wanted)
                done += 1
        progress("token trees", done, total)
    except Exception as error:
        # Any error of an unknown architecture is a finding.
        return findings, f"{at}: {type(error).__name__}: {error}"
    return findings, None


def _by_layer(
    findings: dict[str, Outcome], kinds: tuple[LayerKind, ...], tolerance: Tolerance
) -> tuple[LayerResult, ...]:
    read = {name: outcome.layers for name, outcome in findings.items() if outcome.layers}
    if not read:
        return ()
    results = []
    for number, kind in enumerate(kinds):
        by_scenario = {name: layers[number] for name, layers in read.items()}
        together = sum(by_scenario.values(), Difference())
        results.append(LayerResult(number, kind.name, together, tolerance.worst(by_scenario)))
    return tuple(results)


Standing = Literal["verified", "checked when loaded", "refused"]
Verdict = Literal["exact", "differs", "failed", "refused"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Description of a checkpoint. If it was refused before loading only the first three are known."""

    model_type: str  # The architecture by transformers' name
    standing: Standing  # Compared by the tests of this library, by a check at loading, or refused
    refusal: str | None  # Reason for the refusal, or None
    parameters: int | None = None  # Number of weights
    dtype: str | None = None
    device: str | None = None
    own_attention: str | None = None  # The attention of the plain passes, by transformers' name
    positions: str | None = None  # Position encoding of the decoder
    layers: tuple[str, ...] = ()  # The kind of every decoder layer


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Result of one decoder layer."""

    number: int  # From 0
    kind: str  # Kind of attention
    difference: Difference  # Difference of its output read through the head, over all scenarios
    scenario: str  # The scenario in which it was largest


@dataclass(frozen=True, slots=True)
class Examination:
    """The comparisons."""

    options: ExamineOptions
    plan: Plan
    tolerance: Tolerance  # Largest differences that rounding explains
    rounding: Difference  # Difference of plain passes of different lengths among themselves
    # Difference from the plain passes by way of writing the trees; of no branches if the model cannot do it.
    scenarios: Mapping[str, Difference]
    layers: tuple[LayerResult, ...]  # One entry for every decoder layer; empty if they could not be found
    failure: str | None = None  # Error that token-tree decoding raised, or None

    @property
    def overall(self) -> Difference:
        """All scenarios together."""
        return sum(self.scenarios.values(), Difference())

    @property
    def first_different(self) -> LayerResult | None:
        """The first layer whose output differs by more than rounding."""
        return next((layer for layer in self.layers if not self.tolerance.holds(layer.difference)), None)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of examining a checkpoint."""

    facts: ModelFacts
    examination: Examination | None  # The comparisons; None if the checkpoint was refused before

    @property
    def verdict(self) -> Verdict:
        """The overall result."""
        if self.examination is None:
            return "refused"
        if self.examination.failure is not None:
            return "failed"
        if not self.examination.tolerance.holds(self.examination.overall):
            return "differs"
        return "refused" if self.facts.refusal is not None else "exact"

    def to_json(self) -> dict[str, Any]:
        """Return a document of plain types; NaN and infinity are None."""
        document: dict[str, Any] = {"verdict": self.verdict, **asdict(self.facts)}
        document["layers"] = list(self.facts.layers)
        if self.examination is not None:
            document["examination"] = _examination_json(self.examination)
        return document


def _examination_json(found: Examination) -> dict[str, Any]:
    first = found.first_different
    return {
        "seed": found.options.seed,
        "trees": found.options.trees,
        "depth": found.options.depth,
        "beams": found.options.beams,
        "prompt_tokens": found.plan.prompt_tokens,
        "uncovered": list(found.plan.uncovered),
        "tolerance": {"allowed": found.tolerance.allowed, "relative": found.tolerance.is_relative},
        "failure": found.failure,
        "overall": _difference_json(found.overall),
        "plain_passes_among_themselves": _difference_json(found.rounding),
        "scenarios": [{"name": name, **_difference_json(one)} for name, one in found.scenarios.items()],
        "by_layer": [
            {
                "layer": layer.number,
                "kind": layer.kind,
                "scenario": layer.scenario,
                **_difference_json(layer.difference),
            }
            for layer in found.layers
        ],
        "first_different_layer": None if first is None else first.number,
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    figures = {
        "max_abs_logprob_difference": difference.largest,
        "relative_difference": difference.relative,
    }
    return {
        "branches": difference.branches,
        **{name: figure if math.isfinite(figure) else None for name, figure in figures.items()},
        "same_likeliest_token": difference.agreeing,
    }


# Windows up to here are covered by default: plain passes over longer prompts take minutes on a CPU.
COVERED_WINDOW = 512
USUAL_PROMPT_TOKENS = 48
LEAST_PROMPT_TOKENS = 8
_BEHIND_WINDOW = 16
_QUERIES = 4


class PlanError(ValueError):
    """The options do not fit the model's positions, or leave nothing to examine."""


@dataclass(frozen=True, slots=True)
class ExamineOptions:
    """Sizes of the random trees."""

    seed: int = 0  # The same seed examines the same trees
    trees: int = 2  # Random trees of four queries each
    depth: int = 6  # Tokens written below every prompt
    beams: int = 4  # Branches per query and level, about a fifth of them padding
    # Length of the longest prompt; None: 48, or enough to reach behind the model's windows if they are short.
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("trees", "depth", "beams"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.prompt_tokens is not None and self.prompt_tokens < LEAST_PROMPT_TOKENS:
            raise PlanError(f"prompt_tokens must be at least {LEAST_PROMPT_TOKENS}, got {self.prompt_tokens}")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one examination."""

    prompt_tokens: int  # Length of the longest prompt
    uncovered: tuple[str, ...]  # Descriptions of what no comparison reaches


def make_plan(
    options: ExamineOptions,
    windows: Iterable[int | None],
    prompt_limit: int | None,
    title_limit: int | None,
    shared_positions: bool,
) -> Plan:
    """Choose prompts long enough for the windows of the decoder's layers, within its positions.

    Encoder-decoders pass no windows, since the decoder does not read prompts. The limits are the positions
    for a prompt and for the tokens written, which share them if `shared_positions`. PlanError if the options
    need more.
    """
    if title_limit is not None and options.depth >= title_limit:
        raise PlanError(f"depth must be below {title_limit}, the positions of the model, got {options.depth}")
    room = prompt_limit
    if shared_positions and prompt_limit is not None:
        room = prompt_limit - options.depth
    distinct = sorted({window for window in windows if window is not None})
    wanted = options.prompt_tokens
    if wanted is None:
        coverable = [window for window in distinct if window <= COVERED_WINDOW]
        wanted = max([USUAL_PROMPT_TOKENS, *(window + _BEHIND_WINDOW for window in coverable)])
        wanted = wanted if room is None else min(wanted, room)
    if (room is not None and wanted > room) or wanted < LEAST_PROMPT_TOKENS:
        raise PlanError(
            f"prompt_tokens must be in [{LEAST_PROMPT_TOKENS}, {room}] for this model, got {wanted}"
        )
    uncovered = [
        f"the window of {window} tokens: prompts end at {wanted}"
        + (
            f", --prompt-tokens {window + _BEHIND_WINDOW} goes behind it"
            if room is None or window + _BEHIND_WINDOW <= room
            else f", and the model has {prompt_limit} positions"
        )
        for window in distinct
        if window >= wanted
    ]
    return Plan(wanted, tuple(uncovered))


def prompt_lengths(plan: Plan, number: int, generator: torch.Generator) -> tuple[list[int], int]:
    """Return the lengths of a tree's four prompts, and the length of their shared prefix.

    Even trees share little and their lengths are mixed, one of them the longest; odd trees share nearly all.
    """
    longest = plan.prompt_tokens
    prefix = longest // 4 if number % 2 == 0 else longest - 4
    drawn = torch.randint(prefix + 1, longest + 1, (_QUERIES - 2,), generator=generator).tolist()
    return [longest, *drawn, prefix + 1], prefix
