"""The options of `genret serve`, made of the table of settings.

click shows them and splits the command line; values are read by `service.configuration`, which does so for
files and variables as well and names every mistake at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from service.configuration.kinds import Word
from service.configuration.settings import SETTINGS, Setting

_F = TypeVar("_F", bound=Callable[..., Any])


class _UnreadChoice(click.Choice[str]):
    """A word that is left as it is; for the help it has its alternatives."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


class SettingOption(click.Option):
    """An option whose variable click shows and does not read."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return nothing: variables are read with the file, below flags."""
        return None


def setting_options(command: _F) -> _F:
    """Add an option for every setting to a command, which gets their values by `given_flags`."""
    for setting in reversed(SETTINGS):  # decorators apply from the last to the first
        command = _option(setting)(command)
    return command


def given_flags(context: click.Context) -> dict[str, object]:
    """Return what the command line says of settings, without what it leaves to others."""
    return {
        setting.parameter: context.params[setting.parameter]
        for setting in SETTINGS
        if context.get_parameter_source(setting.parameter) is ParameterSource.COMMANDLINE
    }


def _option(setting: Setting) -> Callable[[_F], _F]:
    shown: dict[str, Any] = {
        "cls": SettingOption,
        "help": setting.help,
        "envvar": setting.variable,
        "show_envvar": True,
        "show_default": setting.unset if setting.default is None else True,
    }
    if setting.negation is not None:
        names = (f"{setting.flag}/{setting.negation}", setting.parameter)
        return click.option(*names, default=setting.default, **shown)
    kind = setting.kind
    if isinstance(kind, Word):
        return click.option(
            setting.flag,
            setting.parameter,
            type=_UnreadChoice(kind.rule.words),
            default=setting.default,
            **shown,
        )
    if setting.repeated:
        shown |= {"multiple": True, "show_default": setting.unset}
        return click.option(setting.flag, setting.parameter, type=str, metavar=setting.metavar, **shown)
    return click.option(
        setting.flag,
        setting.parameter,
        type=str,
        metavar=setting.metavar,
        default=setting.default,
        **shown,
    )
