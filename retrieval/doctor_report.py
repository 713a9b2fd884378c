"""Renders the findings of `genret doctor` as text, and finds how the checkpoint should be used.

Usage is read from the checkpoint and measured: prompt, end token, dtype, memory, seconds per query, commands.
"""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import torch
from transformers import PreTrainedModel

from genret.decoding.beam_search import beam_search
from genret.decoding.conformance.examination import Examination, LayerResult, ModelFacts, Report
from genret.decoding.model.architectures import writable_tokens
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.model_loading import SMALL_MODEL_PARAMETERS, automatic_dtype
from genret.decoding.model.self_check import Difference
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.checkpoints import SETTINGS_FILE, settings_folder
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer

_STANDING = {
    "verified": "verified: the tests of this library compare it with plain decoding",
    "checked when loaded": "not verified: a short check decides whenever it is loaded",
    "refused": "refused by name when it is loaded",
}


def render(place: str, report: Report, usage: Usage | str | None) -> str:
    """Return all findings, the verdict, and the usage of an exact model (or why it is unknown)."""
    found = report.examination
    blocks = [_facts(place, report.facts, found)]
    if found is not None:
        blocks.append(_scenarios(found))
        if found.layers:
            blocks.append(_layers(found))
        blocks += [_wrapped(f"Not covered: {what}.") for what in found.plan.uncovered]
        blocks += [_wrapped(note) for note in _notes(report.facts, found)]
    blocks.append(_wrapped(_verdict(report)))
    if usage is not None:
        blocks.append(_wrapped(f"Use: {usage}.") if isinstance(usage, str) else _usage(usage))
    return "\n\n".join(blocks)


def _facts(place: str, facts: ModelFacts, found: Examination | None) -> str:
    lines = [("model", place), ("architecture", facts.model_type), ("standing", _STANDING[facts.standing])]
    if facts.parameters is not None:
        lines.append(("parameters", f"{facts.parameters:,} in {facts.dtype} on {facts.device}"))
        kinds = Counter(facts.layers)
        layers = [f"{count} x {kind}" for kind, count in kinds.items()] or ["not found"]
        lines += [("layers" if not n else "", text) for n, text in enumerate(layers)]
        lines.append(("positions", facts.positions or "unknown"))
    if found is not None:
        options, plan = found.options, found.plan
        trees = "1 tree" if options.trees == 1 else f"{options.trees} trees"
        lines += [
            (
                "compared",
                f"{trees} of 4 queries, {options.depth} levels of {options.beams} branches, "
                f"prompts up to {plan.prompt_tokens} tokens, seed {options.seed}",
            ),
            ("with", f"every path alone in a plain forward pass ({facts.own_attention} attention, no cache)"),
        ]
    return "\n".join(f"{name:<14}{text}" for name, text in lines)


def _scenarios(found: Examination) -> str:
    rows: list[tuple[str, ...]] = [
        ("token trees", "branches", "largest diff", "relative", "same first choice")
    ]
    rows += [_scenario_row(name, one) for name, one in found.scenarios.items()]
    rows.append(_scenario_row("all", found.overall))
    if found.rounding.branches:
        rows.append(_scenario_row("plain passes among themselves", found.rounding))
    return _table(rows, left={0})


def _scenario_row(name: str, difference: Difference) -> tuple[str, ...]:
    if not difference.branches:
        return (name, "0", "-", "-", "cannot be done")
    return (
        name,
        f"{difference.branches:,}",
        f"{difference.largest:.1e}",
        f"{difference.relative:.1e}",
        f"{difference.agreeing / difference.branches:.1%}",
    )


def _layers(found: Examination) -> str:
    by_kind: dict[str, list[LayerResult]] = {}
    for layer in found.layers:
        by_kind.setdefault(layer.kind, []).append(layer)
    rows: list[tuple[str, ...]] = [
        ("decoder layers read by the head", "count", "largest diff", "relative", "worst layer", "in")
    ]
    for kind, layers in by_kind.items():
        worst = found.tolerance.worst({layer: layer.difference for layer in layers})
        rows.append(
            (
                kind,
                str(len(layers)),
                f"{worst.difference.largest:.1e}",
                f"{worst.difference.relative:.1e}",
                str(worst.number),
                worst.scenario,
            )
        )
    return _table(rows, left={0, 5})


def _usage(usage: Usage) -> str:
    end = "none that its tokenizer names: name one with --end-token of genret build"
    lines = [
        ("prompt", usage.prompt),
        ("end token", end if usage.end_token is None else repr(usage.end_token)),
        ("dtype", f"{usage.dtype} ({usage.why_dtype})"),
        ("memory", f"{_size(usage.weights_bytes)} of weights, {_size(usage.kv_bytes_per_token)} a token"),
        ("a query", f"{usage.query_s:.2g} s in {usage.dtype} ({usage.query})"),
        *(("type" if not number else "", command) for number, command in enumerate(usage.commands)),
    ]
    return "\n".join(f"{name:<14}{text}" for name, text in lines)


def _size(num_bytes: int) -> str:
    if num_bytes < 10_000_000:
        return f"{num_bytes / 1e3:,.1f} kB"
    return f"{num_bytes / 1e6:,.0f} MB"


def _notes(facts: ModelFacts, found: Examination) -> list[str]:
    if not found.tolerance.is_relative:
        return []
    return [
        f"In {facts.dtype} the kernels round differently for different batch shapes, so single "
        "log-probabilities may differ visibly between any two ways of running the model, and close first "
        "choices may change places; 'plain passes among themselves' shows how far this model goes. "
        f"--dtype float32 (or float64) compares exactly."
    ]


def _verdict(report: Report) -> str:
    facts, found = report.facts, report.examination
    if found is None:
        return f"REFUSED: {facts.refusal}."
    if report.verdict == "failed":
        return f"FAILED: token-tree decoding cannot run this model. {found.failure}"
    if report.verdict == "differs":
        if math.isnan(found.rounding.largest):
            return "DIFFERS: the model's own plain passes answer NaN, so that nothing agrees with them."
        return f"DIFFERS: {_measured(found)} {_where(found)}"
    if report.verdict == "refused":
        return f"REFUSED all the same: {facts.refusal}. {_measured(found)}"
    partly = "as far as covered: " if found.plan.uncovered else ""
    word = "AGREES" if found.tolerance.is_relative else "EXACT"
    return f"{word}: {partly}{_measured(found)}"


def _measured(found: Examination) -> str:
    tolerance, overall = found.tolerance, found.overall
    what = "the relative difference is" if tolerance.is_relative else "log-probabilities differ by at most"
    relation = "below" if tolerance.holds(overall) else "not below"
    return (
        f"{what} {tolerance.measure(overall):.1e}, {relation} the {tolerance.bound(overall):.2g} of rounding."
    )


def _where(found: Examination) -> str:
    worst = found.tolerance.worst(found.scenarios)
    first = found.first_different
    if not found.layers:
        return f"Worst: {worst}."
    if first is None:
        return f"Worst: {worst}. All decoder layers agree: the difference begins behind them."
    return f"Worst: {worst}. It begins at decoder layer {first.number} ({first.kind})."


def _table(rows: Sequence[tuple[str, ...]], left: set[int]) -> str:
    """Return columns as wide as their widest cell, with a rule below the heading."""
    columns = []
    for number, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if number in left else cell.rjust(width) for cell in cells])
    heading, *lines = ("  ".join(cells) for cells in zip(*columns, strict=True))
    return "\n".join(line.rstrip() for line in (heading, "-" * len(heading), *lines))


_wrapped = partial(fill, width=100)


# A query as measured.
_PROMPT_TOKENS = 48
_TITLES = 10_000
_TITLE_TOKENS = 6
_BEAMS = 10
_REPEATS = 3
_SEED = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """The recommended use of a checkpoint, with the median seconds of one measured query."""

    prompt: str
    end_token: str | None
    dtype: str
    why_dtype: str
    weights_bytes: int
    kv_bytes_per_token: int
    query_s: float
    query: str
    commands: tuple[str, ...]


def find_usage(
    place: str, model: PreTrainedModel, own_dtype: torch.dtype, progress: Callable[[str, int, int], None]
) -> Usage:
    """Read a checkpoint's own settings and time a few queries in the type that it should be used in.

    Args:
        place: Directory, GGUF file, adapter or hub id.
        model: Its weights, which are converted to that type.
        own_dtype: Type that the checkpoint is stored in.
        progress: Called with a stage, units done and units in all.

    Raises:
        ModelError: its tokenizer or its `genret.json` cannot be read.
    """
    tokenizer = TextTokenizer.load(place)
    folder = settings_folder(Path(tokenizer.source))
    config = CheckpointConfig.load(folder)
    dtype = automatic_dtype(model.num_parameters(), own_dtype, model.device)
    name = str(dtype).removeprefix("torch.")
    wrapped = HFLanguageModel(model.to(dtype), checked=False)  # type: ignore[arg-type]
    query_s, query = _time_queries(wrapped, progress)
    quoted = shlex.quote(place)
    taught = (folder / SETTINGS_FILE).is_file()
    writes = not taught and not wrapped.is_encoder_decoder and Path(place).exists()  # no hub id, no wheel
    commands = (f"genret init-model {quoted}",) if writes else ()
    return Usage(
        prompt=_prompt(folder, config, wrapped.is_encoder_decoder),
        end_token=(config.rendering or Rendering()).end_token or tokenizer.end_token,
        dtype=name,
        why_dtype=_why(model.num_parameters(), name),
        weights_bytes=sum(p.nbytes for p in model.parameters()),
        kv_bytes_per_token=_kv_bytes_per_token(wrapped),
        query_s=query_s,
        query=query,
        commands=(
            *commands,
            f"genret build CATALOGUE --tokenizer {quoted} --out my.index",
            f"genret serve my.index --model {quoted} --dtype {name}",
        ),
    )


def _prompt(folder: Path, config: CheckpointConfig, is_encoder_decoder: bool) -> str:
    if (folder / SETTINGS_FILE).is_file():
        return f"{config.default_prompt!r} of its {SETTINGS_FILE}"
    if is_encoder_decoder:
        return "none that it knows: teach it with `genret train --model`"
    if config.chat is not None:
        return f"its chat template; it has no {SETTINGS_FILE}, which `genret init-model` writes"
    return f"few-shot; it has no chat template and no {SETTINGS_FILE}, which `genret init-model` writes"


def _why(parameters: int, dtype: str) -> str:
    if parameters < SMALL_MODEL_PARAMETERS:
        return f"below {SMALL_MODEL_PARAMETERS // 10**6} M parameters less gains little"
    if dtype == "float32":
        return "this device computes nothing shorter faster"
    return "float32 where an order must be the model's own"


def _time_queries(model: HFLanguageModel, progress: Callable[[str, int, int], None]) -> tuple[float, str]:
    """Return the median seconds of a beam search over made-up titles, and its description."""
    generator = torch.Generator().manual_seed(_SEED)
    allowed = writable_tokens(model.pretrained)

    def draw(*shape: int) -> Any:
        return allowed[torch.randint(len(allowed), shape, generator=generator)].tolist()

    trie = TitleTrie.from_rows(draw(_TITLES, _TITLE_TOKENS), model.vocab_size, model.device)
    longest = Limits.of(model).prompt_tokens(_TITLE_TOKENS)
    length = _PROMPT_TOKENS if longest is None else min(longest, _PROMPT_TOKENS)
    params = BeamParams(k=_BEAMS, beam_size=_BEAMS)
    taken = []
    for number in range(1 + _REPEATS):  # the first one fills caches
        progress("queries", number, 1 + _REPEATS)
        prompt = draw(length)
        began = time.perf_counter()
        beam_search(model.prefill([prompt]), trie, [params])
        taken.append(time.perf_counter() - began)
    progress("queries", 1 + _REPEATS, 1 + _REPEATS)
    what = f"{length} tokens of prompt, {_BEAMS} beams, titles of {_TITLE_TOKENS} tokens, one query at a time"
    return median(taken[1:]), what


def _kv_bytes_per_token(model: HFLanguageModel) -> int:
    token = int(writable_tokens(model.pretrained)[0])
    few, more = (model.prefill([[token] * length]).usage.held_bytes for length in (1, 5))
    return (more - few) // 4
