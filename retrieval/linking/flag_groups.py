"""Options of a command in groups, each of which makes one value and has a heading in the help."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from retrieval.errors import InputError
from retrieval.options import SHOWN

_F = TypeVar("_F", bound=Callable[..., Any])
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option.

    Attributes:
        names: As given, such as "-k", "--k".
        settings: Of `click.option`.
        key: Name of the value; None: that of the option, with underscores.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    key: str | None = None


def flag(*names: str, key: str | None = None, **settings: Any) -> Flag:
    """Return an option that shows its default and the variable that sets it."""
    return Flag(names, {**SHOWN, **settings}, key)


class GroupedCommand(click.Command):
    """A command whose help lists its options under the headings of their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in the order in which their first option was added, and what is in none last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        others = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, GroupedOption) and record is not None:
                sections.setdefault(parameter.heading, []).append(record)
            elif isinstance(parameter, click.Option) and record is not None:
                others.append(record)
        for heading, records in {**sections, "Other options": others}.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class GroupedOption(click.Option):
    """An option that knows its group's heading."""

    def __init__(self, *arguments: Any, heading: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.heading = heading


def flag_group(
    parameter: str, heading: str, flags: Sequence[Flag], make: Callable[[Values], Any]
) -> Callable[[_F], _F]:
    """Return a decorator that adds options to a command and passes it the one value made of them.

    Args:
        parameter: Name of the command's parameter that gets the value.
        heading: In the help.
        flags: The options.
        make: Makes the value; an `InputError` becomes a usage error that names the option.
    """
    keys = [f.key or f.names[-1].split("/")[0].lstrip("-").replace("-", "_") for f in flags]

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def grouped(*arguments: Any, **values: Any) -> Any:
            mine = {key: values.pop(key) for key in keys}
            with as_usage():
                values[parameter] = make(mine)
            return command(*arguments, **values)

        decorated: Any = grouped
        for key, f in reversed(list(zip(keys, flags, strict=True))):
            decorated = click.option(*f.names, key, cls=GroupedOption, heading=heading, **f.settings)(
                decorated
            )
        return decorated  # type: ignore[no-any-return]

    return add


@contextmanager
def as_usage() -> Iterator[None]:
    """Let an `InputError` of the block become a usage error that names the option or the argument."""
    try:
        yield
    except InputError as error:
        name = "INPUTS" if error.field == "inputs" else "--" + error.field.replace("_", "-")
        raise click.UsageError(f"{name}: {error.message}") from error
