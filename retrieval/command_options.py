"""Defines options that several commands share: model, device, prompt, encoder, and those of requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from genret.retrieval.arguments import PROMPT, RequestOption, options_of

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
ENGINE: dict[str, Any] = {
    "help": "vllm, or the address of a vLLM server (http://localhost:8000/v1) that runs the model.",
    "show_default": "the model runs here",
}
ENCODER: dict[str, Any] = {
    "help": "Directory or hub id of the encoder that made the index's vectors.",
    "show_default": "where it lay then",
}
_F = TypeVar("_F", bound=Callable[..., Any])


class _FlagOption(click.Option):
    """An option whose variable is named after its flag, as GENRET_BUILD_JSON; click takes the parameter."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        is_named = ctx.auto_envvar_prefix is not None and not self.envvar
        return (is_named and os.environ.get(self._variable(ctx))) or super().resolve_envvar_value(ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if "envvars" in extra and not self.envvar:
            extra["envvars"] = (self._variable(ctx),)
        return extra

    def _variable(self, ctx: click.Context) -> str:
        flag = max(self.opts, key=len).removeprefix("--")
        return f"{ctx.auto_envvar_prefix}_{flag.upper().replace('-', '_')}"


def shown_option(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """Return `click.option` with its default and its variable in the help."""
    return click.option(*names, **{"cls": _FlagOption, **SHOWN, **settings})


def together(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return one decorator that adds options to a command, in their order."""

    def add(command: _F) -> _F:
        for option in reversed(options):  # decorators apply from the last to the first
            command = option(command)
        return command

    return add


class GroupedCommand(click.Command):
    """A command whose help lists its options under the headings that `grouped` gives them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options without a heading first, where there are more than --help, then the groups."""
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "heading", ""), []).append(record)
        own = sections.pop("")
        parts = [("Options", own), *sections.items()]
        for heading, records in parts if len(own) > 1 else [*parts[1:], ("Other options", own)]:
            with formatter.section(heading):
                formatter.write_dl(records)


def grouped(heading: str, *options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Return one decorator that adds options to a `GroupedCommand`, under a heading in its help."""

    def add(command: _F) -> _F:
        before = len(getattr(command, "__click_params__", ()))
        with_options: Any = together(*options)(command)
        for parameter in with_options.__click_params__[before:]:
            parameter.heading = heading
        done: _F = with_options
        return done

    return add


def flag_settings(option: RequestOption) -> dict[str, Any]:
    """Return the settings of `click.option` for an option of a request."""
    settings = {**SHOWN, "help": option.help, "default": option.default, "show_default": option.unset or True}
    if option.type is bool:
        return settings | {"is_flag": True}
    if option.type is tuple:  # ids come in a file
        help = f"{option.help.rstrip('.')}: a file, one id per line."
        return settings | {"type": click.Path(), "default": None, "help": help}
    return settings | {"type": click.Choice(option.choices) if option.choices else option.type}


def request_flags(request: Any, last: tuple[str, ...] = (), **defaults: Any) -> list[Callable[[_F], _F]]:
    """Return decorators that add the options of a request's dataclass to a command.

    Args:
        request: The dataclass.
        last: Names of options behind all others.
        **defaults: Defaults of options that have none in the request.
    """
    found = []
    for option in sorted(options_of(request).values(), key=lambda one: one.name in last):  # stable
        if option.name in defaults:
            option = replace(option, default=defaults[option.name], unset="")
        found.append(click.option(*flag_names(option), **flag_settings(option)))
    return found


def flag_names(option: RequestOption) -> tuple[str, ...]:
    """Return the spellings of an option of a request on the command line."""
    flag = option.name.replace("_", "-")
    if len(flag) == 1:
        return f"-{flag}", f"--{flag}"
    return (f"--{flag}/--no-{flag}" if option.default is True else f"--{flag}",)


def hardware_options(dtype: str = "auto") -> Callable[[_F], _F]:
    """Add --device, --dtype and --threads to a command, with a default for --dtype."""
    return grouped(
        "Model and device",
        click.option("--device", **DEVICE, **SHOWN),
        click.option("--dtype", **{**DTYPE, "default": dtype}, **SHOWN),
        click.option(
            "--threads", type=click.IntRange(min=1), default=1, help="Torch threads on a CPU.", **SHOWN
        ),
    )


def model_options(command: _F) -> _F:
    """Add --model, --device, --dtype and --threads to a command."""
    model: Callable[[_F], _F] = click.option("--model", **MODEL, show_envvar=True)
    return grouped("Model and device", model, hardware_options())(command)


def encoder_option(command: _F) -> _F:
    """Add --encoder to a command that opens an index with vectors."""
    return grouped("Model and device", click.option("--encoder", **ENCODER, show_envvar=True))(command)


def prompt_option(more: str = "") -> Callable[[_F], _F]:
    """Add --prompt to a command, with one more sentence of help."""
    return click.option("--prompt", **{**flag_settings(PROMPT), "help": f"{PROMPT.help} {more}".strip()})


def described_option(
    names: str, help: str, type: Any = None, default: Any = None, **settings: Any
) -> Callable[[_F], _F]:
    """Return `shown_option` of a help text, a type and a default; `names` are separated by blanks."""
    if default is not None:
        settings["default"] = default
    return shown_option(*names.split(), help=help, type=type, **settings)
