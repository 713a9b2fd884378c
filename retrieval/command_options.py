"""Defines options that several commands share: model, device, prompt, encoder, and how `beam` scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

# Every option shows its default and the environment variable that sets it.
SHOWN: dict[str, Any] = {"show_default": True, "show_envvar": True}
# Settings of options that commands of several kinds have.
MODEL: dict[str, Any] = {
    "help": "Checkpoint: a directory, GGUF file, adapter directory or hub id (docs/models.md).",
    "show_default": "the default model",
}
DEVICE: dict[str, Any] = {"default": "auto", "help": "auto, cpu, cuda, cuda:1, ..."}
DTYPE: dict[str, Any] = {
    "type": click.Choice(["auto", "float32", "bfloat16", "float16", "float64"]),
    "default": "auto",
    "help": "Number type of the model.",
}
PROMPT: dict[str, Any] = {
    "help": "Name of the prompt template; an unknown one lists those there are.",
    "show_default": "the checkpoint's",
}
ENCODER: dict[str, Any] = {
    "help": "Directory or hub id of the encoder that made the index's vectors.",
    "show_default": "where it lay then",
}
_F = TypeVar("_F", bound=Callable[..., Any])


def adaptive_option(command: _F) -> _F:
    """Add --adaptive to a command that can answer by `disc`."""
    return click.option(
        "--adaptive",
        is_flag=True,
        help="disc: what the first draws find invalid is left out of later ones; more are accepted.",
        **SHOWN,
    )(command)


def hardware_options(dtype: str = "auto") -> Callable[[_F], _F]:
    """Add --device, --dtype and --threads to a command, with a default for --dtype."""
    options = (
        click.option("--device", **DEVICE, **SHOWN),
        click.option("--dtype", **{**DTYPE, "default": dtype}, **SHOWN),
        click.option(
            "--threads", type=click.IntRange(min=1), default=1, help="Torch threads on a CPU.", **SHOWN
        ),
    )

    def add(command: _F) -> _F:
        for option in reversed(options):  # decorators apply from the last to the first
            command = option(command)
        return command

    return add


def model_options(command: _F) -> _F:
    """Add --model, --device, --dtype and --threads to a command."""
    return click.option("--model", **MODEL, show_envvar=True)(hardware_options()(command))


def encoder_option(command: _F) -> _F:
    """Add --encoder to a command that opens an index with vectors."""
    return click.option("--encoder", **ENCODER, show_envvar=True)(command)


def prompt_option(more: str = "", envvar: str | None = None) -> Callable[[_F], _F]:
    """Add --prompt to a command.

    Args:
        more: What the command does with it, a sentence behind that of all commands.
        envvar: Variable of a command that names its own; None: by the command's name.
    """
    told = f"{PROMPT['help']} {more}".strip()
    return click.option("--prompt", **{**PROMPT, "help": told}, show_envvar=True, envvar=envvar)


_OPTIONS = (
    click.option(
        "--exact",
        is_flag=True,
        help="beam: go on until the list is proven, or --exact-budget is spent.",
        **SHOWN,
    ),
    click.option(
        "--exact-budget",
        type=int,
        help="beam: most tokens computed for that, at most 1000000.",
        show_default="1024",
        show_envvar=True,
    ),
    click.option(
        "--length-penalty",
        type=float,
        default=0.0,
        help="beam: rank by log P / length ** this, in [-4, 4]; above 0 favours long titles.",
        **SHOWN,
    ),
    click.option(
        "--aggregate",
        type=click.Choice(["sum", "max"]),
        help="beam: an entity's score is the probability of all of its titles and aliases found, or the "
        "score of the best one.",
        show_default="sum; max with a --length-penalty",
        show_envvar=True,
    ),
)


def scoring_options(command: _F) -> _F:
    """Add --exact, --exact-budget, --length-penalty and --aggregate to a command."""
    for option in reversed(_OPTIONS):  # decorators apply from the last to the first
        command = option(command)
    return command
