"""The examination of a model: every way of writing random trees, against plain passes, down to the layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from decoding import architectures
from decoding.conformance.difference import Difference, Tolerance
from decoding.conformance.float64 import exactly
from decoding.conformance.layer_kinds import LayerKind, describe_positions, layer_kinds
from decoding.conformance.layer_readings import LayerReader
from decoding.conformance.plain_passes import PlainAnswers, plain_answers
from decoding.conformance.plan import ExamineOptions, Plan, make_plan, prompt_lengths
from decoding.conformance.random_trees import RandomTree, random_tree
from decoding.conformance.replay import Outcome, replay
from decoding.conformance.report import Examination, LayerResult, ModelFacts, Report, ScenarioResult, Standing
from decoding.conformance.scenarios import SCENARIOS, Driver, Scenario
from decoding.conformance.vocabulary import writable_tokens
from decoding.errors import UnsupportedModelError
from decoding.hf_model import HFLanguageModel

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Findings:
    """Outcomes by scenario, as they come in."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def add(self, scenario: Scenario, outcome: Outcome) -> None:
        before = self.outcomes.get(scenario.name, Outcome(Difference(), ()))
        self.outcomes[scenario.name] = before + outcome


def standing(config: PreTrainedConfig) -> tuple[Standing, str | None]:
    """How an architecture is treated when it is loaded, and why if it is refused."""
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

    The model's attention is replaced on the way, as `HFLanguageModel` does it.

    Args:
        model: Weights in place, with its own attention.
        options: What to draw.
        progress: Called with a stage, and how much of it is done.

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
        answers = _run_plain(model, decoder_prompt, trees, reader, progress)
        findings, failure = _run_trees(model, trees, answers, reader, generator, progress)
    rounding = sum((one.among_themselves for one in answers), Difference())
    tolerance = Tolerance.strict(model.dtype)
    return Report(
        facts,
        Examination(
            options=options,
            plan=plan,
            tolerance=tolerance,
            rounding=rounding,
            scenarios=tuple(ScenarioResult(name, one.logits) for name, one in findings.outcomes.items()),
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
        trees.append(random_tree(lengths, prefix, plan.depth, options.beams, allowed, generator))
    return trees


def _run_plain(
    model: PreTrainedModel,
    decoder_prompt: tuple[int, ...],
    trees: list[RandomTree],
    reader: LayerReader | None,
    progress: Progress,
) -> list[PlainAnswers]:
    total, done = sum(len(list(tree.leaves())) for tree in trees), 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress("plain passes", done, total)

    progress("plain passes", 0, total)
    try:
        return [plain_answers(model, decoder_prompt, tree, reader, tick) for tree in trees]
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {model.config.model_type!r} cannot be examined: a plain forward pass failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _run_trees(
    model: PreTrainedModel,
    trees: list[RandomTree],
    answers: list[PlainAnswers],
    reader: LayerReader | None,
    generator: torch.Generator,
    progress: Progress,
) -> tuple[_Findings, str | None]:
    """Write all trees in all ways, until something is raised."""
    findings = _Findings()
    at = "preparing the model"
    total, done = len(trees) * len(SCENARIOS), 0
    try:
        wrapped = HFLanguageModel(model, checked=False)
        for scenario in SCENARIOS:
            at = scenario.name
            for tree, expected in zip(trees, answers, strict=True):
                progress("token trees", done, total)
                driver = Driver(wrapped, tree, reader, generator)
                findings.add(scenario, replay(driver, scenario, expected))
                done += 1
        progress("token trees", done, total)
    except Exception as error:
        # Whatever an unknown architecture raises is the finding.
        return findings, f"{at}: {type(error).__name__}: {error}"
    return findings, None


def _by_layer(
    findings: _Findings, kinds: tuple[LayerKind, ...], tolerance: Tolerance
) -> tuple[LayerResult, ...]:
    read = {name: outcome.layers for name, outcome in findings.outcomes.items() if outcome.layers}
    if not read:
        return ()
    results = []
    for number, kind in enumerate(kinds):
        by_scenario = {name: layers[number] for name, layers in read.items()}
        worst = max(by_scenario, key=lambda name: tolerance.measure(by_scenario[name]))
        together = sum(by_scenario.values(), Difference())
        results.append(LayerResult(number, kind.name, together, worst))
    return tuple(results)
