"""What an examination found, for people and for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from decoding.conformance.difference import Difference, Tolerance
from decoding.conformance.plan import ExamineOptions, Plan

Standing = Literal["verified", "checked when loaded", "refused"]
Verdict = Literal["exact", "differs", "failed", "refused"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a checkpoint is. Of a refused one that was not loaded only the first three are known.

    Attributes:
        model_type: The architecture by transformers' name.
        standing: Whether the tests of this library compare it, a check at loading does, or it is refused.
        refusal: Why it is refused, or None.
        parameters: Number of weights.
        dtype: What it computes in.
        device: Where.
        own_attention: The attention of the plain passes, by transformers' name.
        positions: How the decoder knows where a token stands.
        layers: The kind of every decoder layer.
    """

    model_type: str
    standing: Standing
    refusal: str | None
    parameters: int | None = None
    dtype: str | None = None
    device: str | None = None
    own_attention: str | None = None
    positions: str | None = None
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One way of writing the trees.

    Attributes:
        name: What it is called.
        difference: From the plain passes; of no branches where the model cannot do it.
    """

    name: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One decoder layer.

    Attributes:
        number: From 0.
        kind: How it attends.
        difference: Of its output read through the head, over all scenarios.
        scenario: The one in which it was largest.
    """

    number: int
    kind: str
    difference: Difference
    scenario: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The comparisons.

    Attributes:
        options: What was asked for.
        plan: What was run.
        tolerance: What rounding explains.
        rounding: How far plain passes of different lengths differ among themselves.
        scenarios: One entry for every way of writing the trees.
        layers: One entry for every decoder layer; empty where the layers could not be found.
        failure: What token-tree decoding raised, or None.
    """

    options: ExamineOptions
    plan: Plan
    tolerance: Tolerance
    rounding: Difference
    scenarios: tuple[ScenarioResult, ...]
    layers: tuple[LayerResult, ...]
    failure: str | None = None

    @property
    def overall(self) -> Difference:
        """All scenarios together."""
        return sum((result.difference for result in self.scenarios), Difference())

    @property
    def first_different(self) -> LayerResult | None:
        """The first layer whose output differs by more than rounding."""
        return next((layer for layer in self.layers if not self.tolerance.holds(layer.difference)), None)


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a checkpoint.

    Attributes:
        facts: What it is.
        examination: The comparisons; None where it was refused before.
    """

    facts: ModelFacts
    examination: Examination | None

    @property
    def verdict(self) -> Verdict:
        """What to make of it."""
        if self.examination is None:
            return "refused"
        if self.examination.failure is not None:
            return "failed"
        if not self.examination.tolerance.holds(self.examination.overall):
            return "differs"
        return "refused" if self.facts.refusal is not None else "exact"

    def to_json(self) -> dict[str, Any]:
        """A document of plain types; NaN and infinity are None."""
        facts = self.facts
        document: dict[str, Any] = {
            "verdict": self.verdict,
            "model_type": facts.model_type,
            "standing": facts.standing,
            "refusal": facts.refusal,
            "parameters": facts.parameters,
            "dtype": facts.dtype,
            "device": facts.device,
            "own_attention": facts.own_attention,
            "positions": facts.positions,
            "layers": list(facts.layers),
        }
        if self.examination is not None:
            document["examination"] = _examination_json(self.examination)
        return document


def _examination_json(found: Examination) -> dict[str, Any]:
    first = found.first_different
    return {
        "seed": found.options.seed,
        "trees": found.options.trees,
        "depth": found.plan.depth,
        "beams": found.options.beams,
        "prompt_tokens": found.plan.prompt_tokens,
        "uncovered": list(found.plan.uncovered),
        "tolerance": {"allowed": found.tolerance.allowed, "relative": found.tolerance.is_relative},
        "failure": found.failure,
        "overall": _difference_json(found.overall),
        "plain_passes_among_themselves": _difference_json(found.rounding),
        "scenarios": [
            {"name": result.name, **_difference_json(result.difference)} for result in found.scenarios
        ],
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
    return {
        "branches": difference.branches,
        "max_abs_logprob_difference": _finite(difference.largest),
        "relative_difference": _finite(difference.relative),
        "same_likeliest_token": difference.agreeing,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
