"""`genret train`: fine-tune a checkpoint on a catalogue, or train a small model from scratch."""

from __future__ import annotations

import json
from pathlib import Path

import click

from retrieval.errors import GenretError, InputError, MissingExtraError

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("train")
@click.option("--catalogue", type=_FILE, required=True, help="TSV with a column title; entity_id, aliases ('|'-separated), description and kind are used where present.")  # fmt: skip  # noqa: E501
@click.option("--queries", "--pairs", "queries", type=_FILE, help="TSV with the columns query and entity_id (or title), and optionally split (train, dev, test).")  # fmt: skip  # noqa: E501
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the checkpoint.")  # fmt: skip  # noqa: E501
@click.option(
    "--model", help="Checkpoint to fine-tune: a folder or a hub id, decoder-only or encoder-decoder."
)
@click.option("--preset", help="Train a small model from scratch instead, with its own tokenizer: tiny, small or small-seq2seq.")  # fmt: skip  # noqa: E501
@click.option("--minutes", type=float, help="Wall time of the run, evaluation at the end not counted.")
@click.option("--epochs", type=float, help="Passes over all titles, aliases, descriptions and training queries. [default without any limit: 40 for a preset, 3 for a model]")  # fmt: skip  # noqa: E501
@click.option("--max-steps", type=int, help="Optimiser steps.")
@click.option("--batch-size", type=click.IntRange(min=1), default=48, show_default=True)
@click.option("--learning-rate", type=float, help="Peak rate. [default: 1e-2 for a preset, 5e-5 for a model]")
@click.option("--weight-decay", type=click.FloatRange(min=0), default=0.05, show_default=True)
@click.option("--label-smoothing", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True)
@click.option("--optimizer", type=click.Choice(["muon", "adamw"]), help="[default: muon for a preset, adamw for a model]")  # fmt: skip  # noqa: E501
@click.option("--vocab-size", type=int, help="Vocabulary of the tokenizer trained with a preset.")
@click.option("--max-prompt-tokens", type=int, default=96, show_default=True, help="Longer training prompts are cut.")  # fmt: skip  # noqa: E501
@click.option("--seed", type=int, default=17, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads.")
@click.option("--cpu", is_flag=True, help="Stay on the CPU even where an accelerator is present.")
@click.option("--bf16", is_flag=True, help="Compute in bfloat16; weights stay float32 (about twice as fast where the processor has it).")  # fmt: skip  # noqa: E501
@click.option("--save-dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float16", show_default=True)  # fmt: skip  # noqa: E501
@click.option("--save-steps", type=click.IntRange(min=1), default=500, show_default=True, help="Steps between two resumable checkpoints.")  # fmt: skip  # noqa: E501
@click.option("--eval-steps", type=click.IntRange(min=0), default=0, show_default=True, help="Steps between two looks at the dev queries; 0: only at the end.")  # fmt: skip  # noqa: E501
@click.option("--log-steps", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint under OUT/checkpoints, if there is one.")  # fmt: skip  # noqa: E501
@click.option("--test", is_flag=True, help="Also measure the test queries after training; they are never trained on.")  # fmt: skip  # noqa: E501
def train_command(
    catalogue: Path,
    queries: Path | None,
    out: Path,
    model: str | None,
    preset: str | None,
    minutes: float | None,
    epochs: float | None,
    max_steps: int | None,
    batch_size: int,
    learning_rate: float | None,
    weight_decay: float,
    label_smoothing: float,
    optimizer: str | None,
    vocab_size: int | None,
    max_prompt_tokens: int,
    seed: int,
    threads: int,
    cpu: bool,
    bf16: bool,
    save_dtype: str,
    save_steps: int,
    eval_steps: int,
    log_steps: int,
    resume: bool,
    test: bool,
) -> None:
    """Teach a language model to write the titles of a catalogue.

    Either fine-tunes --model, or trains --preset from scratch. Prints hits@1 and hits@10 under the
    catalogue constraint on the dev queries and writes them to OUT/metrics.json; progress goes to stderr,
    the metrics go to stdout as JSON.
    """
    try:
        import accelerate  # noqa: F401
    except ModuleNotFoundError as error:
        raise click.ClickException(str(MissingExtraError("accelerate", "train"))) from error
    import torch
    import transformers

    from retrieval.training.run import RunPlan, run_training
    from retrieval.training.trainer import TrainerOptions

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        plan = RunPlan(
            catalogue=catalogue,
            queries=queries,
            out=out,
            preset=preset,
            model=model,
            minutes=minutes,
            epochs=epochs,
            max_steps=max_steps,
            vocab_size=vocab_size,
            max_prompt_tokens=max_prompt_tokens,
            save_dtype=save_dtype,
            test=test,
            trainer=TrainerOptions(
                optimizer=optimizer or ("muon" if preset else "adamw"),
                learning_rate=learning_rate or (1e-2 if preset else 5e-5),
                weight_decay=weight_decay,
                batch_size=batch_size,
                label_smoothing=label_smoothing,
                seed=seed,
                save_steps=save_steps,
                eval_steps=eval_steps,
                log_steps=log_steps,
                bf16=bf16,
                use_cpu=cpu,
                resume=resume,
            ),
        )
    except InputError as error:
        raise click.UsageError(str(error)) from error
    try:
        metrics = run_training(plan, lambda line: click.echo(line, err=True))
    except InputError as error:
        raise click.UsageError(str(error)) from error
    except GenretError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(metrics, indent=2, sort_keys=True))
