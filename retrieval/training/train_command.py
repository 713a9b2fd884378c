"""`genret train`: fine-tune a checkpoint on a catalogue, or train a small model or encoder from scratch."""

from __future__ import annotations

import json
import math
import sys
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from genret.retrieval.command_options import described_option as _option
from genret.retrieval.command_options import prompt_option
from genret.retrieval.errors import InputError, require_package
from genret.retrieval.interruption import INTERRUPTED, surely_interrupted
from genret.retrieval.progress import ProgressDisplay, StepProgress
from genret.retrieval.training.presets import LEAST_VOCAB_SIZE, PRESETS

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from genret.retrieval.training.forecast import RunForecast

_FILE = click.Path(path_type=Path, dir_okay=False)
_COUNT = click.IntRange(min=1)
_NATURAL = click.IntRange(min=0)
_MAX_STEPS = 10_000_000  # MAX_STEPS of genret.retrieval.training.training_run, which needs torch
_MAX_SEED = 2**32 - 1  # numpy's, which the training loop seeds too
_DECODER_ONLY = (
    "mentions",
    "weight_decay",
    "label_smoothing",
    "optimizer",
    "answers",
    "annotations",
    "lora",
    "lora_layers",
)
_ENCODER_ONLY = ("teacher",)


class _Number(click.FloatRange):
    """A finite number in a range: "nan" lies between no two bounds, yet passes `FloatRange`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; refuse one that is not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


_POSITIVE = _Number(min=0, min_open=True)


class _PlannedError(Exception):
    """Ends a run that was only to be planned; its arguments are the forecast and the objection, or None."""


def _smaller(model: str | None, lora: int | None, preset: str | None, **_: Any) -> str:
    """Return the options that make a model of these cheaper to train, each with a comma behind it."""
    if model is not None:
        return "--preset small, " if lora else "--lora 16 --bf16, --preset small, "
    return "--preset tiny, " if preset in ("small", "small-seq2seq") else ""


def _columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, TextColumn

    note = TextColumn("{task.fields[note]}", markup=False)
    return [TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), note]


@click.command("train", context_settings={"show_default": True, "max_content_width": 100})
@_option(
    "--catalogue",
    "TSV with a column title, or one title per line, as for build; entity_id, aliases ('|'-separated), "
    "description and kind are used where present.",
    _FILE,
    required=True,
)
@_option(
    "--queries --pairs queries",
    "TSV with the columns query and entity_id (or title), and optionally split (train, dev, test).",
    _FILE,
    show_default="the catalogue alone",
)
@_option(
    "--mentions",
    "JSON lines of labelled mentions to train on: mention, left, right, and title or entity_id; as for "
    "link. Lines without a title are left out.",
    _FILE,
    show_default="sentences made of the catalogue's names",
)
@_option(
    "--max-bad-rows", "Most bad rows of the catalogue that are left out; more are an error.", _NATURAL, 0
)
@_option("--out", "Folder of the checkpoint.", click.Path(path_type=Path, file_okay=False), required=True)
@_option(
    "--model",
    "Checkpoint to fine-tune: a folder, GGUF file or hub id, decoder-only or encoder-decoder.",
    metavar="DIR_OR_ID",
    show_default="none: --preset",
)
@prompt_option("Queries are put to the model by it, in training as afterwards.")
@_option(
    "--lora",
    "Leave the weights of --model as they are and train LoRA matrices of this rank beside all its "
    "linear layers. OUT becomes an adapter, a few megabytes, which is opened like any checkpoint. If --model "
    "is an adapter of this rank, its matrices are trained on, and OUT belongs to the same base.",
    _COUNT,
    metavar="RANK",
    show_default="train the weights",
)
@_option(
    "--lora-layers",
    "With --lora: only beside this many layers, counted from the output, which makes steps cheaper.",
    _COUNT,
    show_default="all",
)
@_option(
    "--preset",
    "Train a small model from scratch instead, with its own tokenizer.",
    click.Choice(list(PRESETS)),
    show_default="none: --model",
)
@_option(
    "--encoder",
    "Train a small sentence encoder from scratch instead, for the vectors encoder:OUT.",
    is_flag=True,
)
@_option(
    "--teacher",
    "Also teach the encoder which texts another model finds alike: encoder:MODEL or "
    "sentence-transformers:MODEL.",
    metavar="METHOD",
    show_default="none",
)
@_option(
    "--minutes",
    "Wall time of the run, evaluation at the end not counted. The first limit reached ends the run.",
    _POSITIVE,
    show_default="no limit",
)
@_option(
    "--epochs",
    "Passes over all titles, aliases, descriptions and training queries.",
    _POSITIVE,
    show_default="without any limit 3 for a model, 40 for a preset or encoder",
)
@_option("--max-steps", "Optimiser steps of the run.", click.IntRange(1, _MAX_STEPS), show_default="no limit")
@_option("--batch-size", "Examples per step.", _COUNT, show_default="48, 512 for an encoder")
@_option(
    "--learning-rate",
    "Peak rate; it rises over the first 3 % of the run and falls to zero at its end.",
    _POSITIVE,
    show_default="1e-2 for a preset, 5e-5 for a model, 5e-4 with --lora, 1e-2 for an encoder",
)
@_option("--weight-decay", "Decoupled weight decay of the hidden matrices.", _Number(min=0), 0.05)
@_option(
    "--label-smoothing",
    "Share of the target that is spread over the whole vocabulary.",
    _Number(0, 1, max_open=True),
    0.0,
)
@_option(
    "--optimizer",
    "muon: Muon for the hidden matrices, AdamW for the rest; adamw: AdamW for all.",
    click.Choice(["muon", "adamw"]),
    show_default="muon for a preset, adamw for a model",
)
@_option(
    "--vocab-size",
    "Vocabulary of the tokenizer trained with a preset or encoder.",
    click.IntRange(min=LEAST_VOCAB_SIZE),
    show_default=", ".join(f"{preset.vocab_size} for {preset.name}" for preset in PRESETS.values())
    + ", 8192 for an encoder",
)
@_option(
    "--max-prompt-tokens",
    "Longer training prompts are cut, and longer texts of an encoder.",
    click.IntRange(min=8),
    96,
)
@_option(
    "--answers",
    "Share of the examples whose target is a JSON document with the title in it, for genret answer.",
    _Number(0, 1),
    0.0,
)
@_option(
    "--annotations",
    "Share of the examples with labelled mentions whose target is the text around them with links "
    "in it, for genret link --mentions generated.",
    _Number(0, 1),
    0.0,
)
@_option(
    "--seed",
    "Seed of the weights, the order of the examples and everything else random.",
    click.IntRange(0, _MAX_SEED),
    17,
)
@_option("--threads", "CPU threads.", _COUNT, 1)
@_option("--cpu", "Stay on the CPU even where an accelerator is present.", is_flag=True)
@_option(
    "--bf16",
    "Compute in bfloat16; weights stay float32, but for those that --lora leaves as they are (about "
    "twice as fast where the processor has it).",
    is_flag=True,
)
@_option(
    "--save-dtype",
    "Type of the weights in the finished checkpoint.",
    click.Choice(["float32", "float16", "bfloat16"]),
    "float16",
)
@_option("--save-steps", "Steps between two resumable checkpoints; an interrupt writes one too.", _COUNT, 500)
@_option(
    "--eval-steps",
    "Steps between two evaluations on some dev queries (mistyped titles without any); 0: only at the end.",
    _NATURAL,
    show_default="after every tenth of the run, in 5 % of its time",
)
@_option("--log-steps", "Steps over which the loss that is shown is a mean.", _COUNT, 50)
@_option("--plan", "Measure a few steps, print the plan of the run, and stop.", is_flag=True)
@_option(
    "--json json_",
    "Print the plan as JSON; the metrics of a run always are.",
    is_flag=True,
)
@_option("--max-hours", "Longest run that begins without a question.", _POSITIVE, 24.0)
@_option("--yes", "Begin whatever the plan says.", is_flag=True)
@_option(
    "--restart", "Begin anew where OUT holds an interrupted run, and remove its checkpoints.", is_flag=True
)
@_option("--test", "Also measure the test queries after training; they are never trained on.", is_flag=True)
@click.pass_context
def train_command(
    ctx: click.Context,
    /,
    batch_size: int | None,
    learning_rate: float | None,
    optimizer: str | None,
    threads: int,
    cpu: bool,
    json_: bool,
    yes: bool,
    max_hours: float,
    **options: Any,
) -> None:
    """Teach a language model to write the titles of a catalogue, or an encoder to find its entities.

    Fine-tunes --model, or trains --preset or --encoder from scratch. The first steps are measured; then the
    plan is printed: length, time on this machine, memory. A run of more than --max-hours, or without enough
    memory, does not begin, or asks on a terminal. Prints hits@1 and hits@10 on the dev queries, of a language
    model under the catalogue constraint, and writes them to OUT/metrics.json; progress goes to stderr, the
    metrics go to stdout as JSON. Ctrl-C ends the step under way and writes a checkpoint; the same command
    goes on there, also after a crash.
    """
    encoder, out, is_plan = options["encoder"], options["out"], options.pop("plan")
    _refuse_foreign_options(ctx, encoder)
    require_package("accelerate", "train")
    import torch
    import transformers

    from genret.retrieval.training.encoder_training import run_encoder_training
    from genret.retrieval.training.trainer import (
        TrainerOptions,
        TrainingInterrupted,
        checkpoint_step,
        last_checkpoint,
    )
    from genret.retrieval.training.training_run import TrainingPlan, run_training

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    in_trainer = {f.name: options.pop(f.name) for f in fields(TrainerOptions) if f.name in options}
    usual_rate = 1e-2 if options["model"] is None else 5e-5 if options["lora"] is None else 5e-4
    display = ProgressDisplay(_columns)

    def approve(forecast: RunForecast) -> None:
        objection = forecast.objection(max_hours, _smaller(**options))
        if is_plan:
            raise _PlannedError(forecast, objection)
        display.say(forecast.table())
        if objection is None or yes:
            return
        if display.is_live and sys.stdin.isatty():
            display.say(objection)
            with display.paused(), surely_interrupted():
                click.confirm("Begin all the same?", abort=True, err=True)
            return
        raise click.ClickException(f"{objection}; --yes begins all the same")

    try:
        trainer = TrainerOptions(
            optimizer=optimizer or ("muon" if options["preset"] else "adamw"),
            learning_rate=learning_rate or usual_rate,
            batch_size=batch_size or (512 if encoder else 48),
            use_cpu=cpu,
            **in_trainer,
        )
        plan = TrainingPlan(**options, trainer=trainer)
        run = run_encoder_training if encoder else run_training
        with ExitStack() as stack:
            if is_plan:
                plan = replace(plan, out=Path(stack.enter_context(TemporaryDirectory())))
            stack.enter_context(display)
            metrics = run(plan, StepProgress(display), approve)
    except _PlannedError as planned:
        forecast, objection = planned.args
        as_json = forecast.to_json() | {"objection": objection}
        click.echo(json.dumps(as_json, indent=2) if json_ else forecast.table())
        if objection is not None and not json_:
            click.echo(objection)
        raise click.exceptions.Exit(0 if yes or objection is None else 1) from None
    except TrainingInterrupted as error:
        click.echo(f"{error}; the same command goes on", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        last = last_checkpoint(out / "checkpoints")
        told = (
            "no checkpoint was written yet: start again"
            if last is None
            else f"the last checkpoint is of step {checkpoint_step(last)}: the same command goes on"
        )
        click.echo(f"interrupted; {told}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except InputError as error:
        raise click.UsageError(str(error)) from error
    click.echo(json.dumps(metrics, indent=2, sort_keys=True))


def _refuse_foreign_options(ctx: click.Context, encoder: bool) -> None:
    for name in _DECODER_ONLY if encoder else _ENCODER_ONLY:
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} {'does not go with' if encoder else 'needs'} --encoder")
