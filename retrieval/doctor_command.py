"""Runs `genret doctor`: compares the token tree of a checkpoint with plain decoding, layer by layer."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from genret.decoding.errors import DecodingError, ModelLoadError
from genret.retrieval.arguments import INT64
from genret.retrieval.checkpoints import find_checkpoint, local_folder
from genret.retrieval.command_options import (
    GroupedCommand,
    described_option,
    hardware_options,
    shown_option,
)
from genret.retrieval.defaults import default_model
from genret.retrieval.errors import GenretError, ModelError
from genret.retrieval.progress import ProgressDisplay

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

    from genret.decoding.conformance.examination import ExamineOptions, Report
    from genret.retrieval.doctor_report import Usage


_DIFFERENT = 1


@click.command("doctor", cls=GroupedCommand)
@click.argument("model", required=False)
@hardware_options(dtype="float32")
@described_option("--seed", "Of everything random.", click.IntRange(0, INT64[1]), 0)
@described_option("--trees", "Random trees of four queries each.", click.IntRange(min=1), 2)
@described_option("--depth", "Tokens written below every prompt.", click.IntRange(min=1), 6)
@described_option("--beams", "Branches per query and level.", click.IntRange(min=1), 4)
@described_option(
    "--prompt-tokens",
    "Length of the longest prompt.",
    click.IntRange(min=1),
    show_default="48, or enough to reach behind windows of up to 512 tokens",
)
@shown_option(
    "--even-if-refused",
    is_flag=True,
    help="Compare an architecture that is refused by name too, as far as it runs.",
)
@shown_option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE|-",
    help="Write the findings as JSON too; '-': on standard output, in place of the tables.",
    show_default="tables alone",
)
def doctor_command(
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    seed: int,
    trees: int,
    depth: int,
    beams: int,
    prompt_tokens: int | None,
    even_if_refused: bool,
    json_file: Path | None,
) -> None:
    """Check that MODEL is decoded exactly.

    MODEL is a directory, GGUF file, adapter or hub id; the default model when left out.
    Decodes random trees in all the ways the service does and compares every branch with a plain forward pass
    over its path alone. Of an exact model it then says how to use it: prompt, end token, dtype, memory,
    seconds per query, and the commands to type.

    Exits with 0 when they agree within rounding, with 1 when they differ or the architecture is refused, and
    with 2 when there is nothing to compare.
    """
    _refuse_unwritable(json_file)
    import torch
    import transformers

    from genret.decoding.conformance.examination import ExamineOptions, PlanError
    from genret.retrieval.doctor_report import render

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    place = str(default_model()) if model is None else model
    try:
        options = ExamineOptions(seed, trees, depth, beams, prompt_tokens)
        report, usage = _examine(place, device, dtype, options, even_if_refused)
    except (ModelLoadError, PlanError, GenretError) as error:
        raise click.UsageError(str(error)) from error
    except DecodingError as error:
        raise click.ClickException(str(error)) from error
    if json_file is not None:
        how = usage if usage is None or isinstance(usage, str) else asdict(usage)
        text = json.dumps({"model": place, **report.to_json(), "usage": how}, indent=2)
        if str(json_file) == "-":
            click.echo(text)
        else:
            json_file.write_text(text + "\n", encoding="utf-8")
    if str(json_file) != "-":
        click.echo(render(place, report, usage))
    if report.verdict != "exact":
        raise click.exceptions.Exit(_DIFFERENT)


def _examine(
    place: str, device: str, dtype: str, options: ExamineOptions, even_if_refused: bool
) -> tuple[Report, Usage | str | None]:
    """Load and examine a checkpoint once; a refused one is not loaded unless that is asked for.

    Returns the findings, and the usage of an exact model: None for any other, a reason where its tokenizer
    fails.
    """
    from genret.decoding.conformance.examination import ModelFacts, Report, examine, standing
    from genret.decoding.model.model_loading import check_dtype, load_config, load_weights
    from genret.retrieval.doctor_report import find_usage

    target = check_dtype(dtype, device)
    found = find_checkpoint(place)
    found.check_packages()
    local_folder(found.weights)  # tells at once what is nowhere: transformers tries the hub for a minute
    config = load_config(found.weights, trust_remote_code=False)
    how, refusal = standing(config)
    if refusal is not None and not even_if_refused:
        return Report(ModelFacts(config.model_type, how, refusal), None), None
    with ProgressDisplay(is_transient=True) as display:
        display.begin("")
        begun = display.clock()

        def progress(stage: str, done: int, total: int) -> None:
            display.show(f"{stage}: {done} of {total}, {display.clock() - begun:.0f} s")

        progress("loading", 0, 1)
        loaded = load_weights(
            found.weights, config, target, dtype, trust_remote_code=False, adapter=found.adapter
        )
        report = examine(loaded, options, progress)
        report = replace(report, facts=replace(report.facts, standing=how, refusal=refusal))
        usage: Usage | str | None = None
        if report.verdict == "exact":
            try:
                usage = find_usage(place, loaded, _own_dtype(config, loaded), progress)
            except ModelError as error:
                usage = str(error)
    return report, usage


def _own_dtype(config: PreTrainedConfig, model: PreTrainedModel) -> torch.dtype:
    """Return the stored type of a checkpoint, as far as its configuration says."""
    import torch

    declared = getattr(config, "dtype", None)
    return declared if isinstance(declared, torch.dtype) else model.dtype


def _refuse_unwritable(file: Path | None) -> None:
    """Refuse a file that cannot be written before minutes of work, not after."""
    if file is None or str(file) == "-":
        return
    if not file.parent.is_dir():
        raise click.BadParameter(f"no such directory: {file.parent}", param_hint="'--json'")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise click.BadParameter(f"{file} cannot be written", param_hint="'--json'")
