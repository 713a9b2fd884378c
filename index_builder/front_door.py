"""Builds an index from a Python program: from files, dicts or tables, with the options of `genret build`.

The table of options is the command's: values go through it as they do on the command line.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Any, Literal, overload

import click

from genret.index_builder.build import BuildSummary
from genret.index_builder.build_plan import BuildPlan
from genret.index_builder.cli import BuildWish, build_wish
from genret.index_builder.command_line import left_out, shown_progress
from genret.retrieval.errors import InputError, nearest
from genret.retrieval.sources.memory_rows import MemoryRows


@overload
def build_index(
    source: Any, out: str | Path, *, progress: bool = True, dry_run: Literal[False] = False, **options: Any
) -> BuildSummary: ...


@overload
def build_index(
    source: Any, out: str | Path, *, progress: bool = True, dry_run: Literal[True], **options: Any
) -> BuildPlan: ...


def build_index(
    source: Any, out: str | Path, *, progress: bool = True, dry_run: bool = False, **options: Any
) -> BuildSummary | BuildPlan:
    """Build an index and make it the live version of the directory `out`.

    `Retriever.open(out)` answers with it. Rows in memory are streamed: of an iterator no more is held than of
    a file. They are read once, so an interrupted build of them begins anew.

    Args:
        source: A path or several; or an iterable of dicts, whose keys are the columns and whose values are
            typed as in JSON Lines (NaN is a missing value); or a table: a pandas, polars or PyArrow one,
            a dataset of `datasets`, anything with `__arrow_c_stream__`.
        out: Index directory; an index that is there gets a new version.
        progress: Whether progress is shown, where standard error is a terminal.
        dry_run: Whether nothing is built, and the result says what a build would make.
        **options: The other options of `genret build`. One that may be given several times takes a list, and
            COLUMN=TYPE a dict; None: as if it were not given.

    Returns:
        What was built (`index`, `version`, `manifest`, and more); printed, it is what the command says.

    Raises:
        TypeError: there is no such option.
        InputError: an option has a wrong value, or goes without another one.
        GenretError: as the command: `SourceError` for the rows, which are told by number, and others.
    """
    wish = _wish({"dry_run": dry_run, **options})
    with shown_progress(not progress or not sys.stderr.isatty(), "build_index") as shown:
        made: BuildSummary | BuildPlan = wish.run(_sources(source), Path(out), shown, _warn)
    if made.report:
        _warn(left_out(made))
    return made


def _sources(source: Any) -> list[str | Path | MemoryRows]:
    paths = source if isinstance(source, list | tuple) else [source]
    if paths and all(isinstance(path, str | os.PathLike) for path in paths):
        return [os.fspath(path) for path in paths]
    return [MemoryRows(source)]


def _warn(text: str) -> None:
    callers = [frame.function for frame in inspect.stack(0)]
    of_its_caller = callers.index("build_index") + 2
    warnings.warn(text.removeprefix("warning: "), stacklevel=of_its_caller)


# Without a prefix of variables: none of the environment says an option here.
_PARAMS = vars(build_wish)["__click_params__"][::-1]
_TABLE = click.Command("build_index", params=_PARAMS)
_OPTIONS = {one.opts[0].removeprefix("--").replace("-", "_"): one for one in _PARAMS}


def _wish(options: Mapping[str, Any]) -> BuildWish:
    words: list[str] = []
    for name, value in options.items():
        if name not in _OPTIONS:
            near = nearest(name, _OPTIONS)
            meant = f"; did you mean {near!r}?" if near else ""
            raise TypeError(f"build_index() got an unexpected keyword argument {name!r}{meant}")
        words += _words(_OPTIONS[name], value)
    try:
        wish: BuildWish = build_wish(**_TABLE.make_context("build_index", words).params)
    except click.UsageError as error:
        if isinstance(error.__cause__, InputError):  # as it was before it became a command's
            raise error.__cause__ from None
        raise InputError("build_index", error.format_message()) from error
    return wish


def _words(option: Any, value: Any) -> Iterable[str]:
    """Return an option as it would stand on the command line."""
    flag = option.opts[0]
    if option.is_flag:
        return [flag] if value else []
    values = [f"{key}={kind}" for key, kind in value.items()] if isinstance(value, Mapping) else value
    if values is None:
        return []
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    if not option.multiple:
        values = [",".join(map(str, values))]
    return [f"{flag}={one}" for one in values]


def _told(name: str, option: Any) -> str:
    unset = False if option.is_flag else option.default
    default = option.show_default if isinstance(option.show_default, str) else unset
    return f"    {name}: {option.help} Default: {default}."


def _signature() -> Signature:
    own = ("progress", True), ("dry_run", False)
    further = [(name, None) for name in _OPTIONS if name != "dry_run"]
    return Signature(
        [
            Parameter("source", Parameter.POSITIONAL_OR_KEYWORD),
            Parameter("out", Parameter.POSITIONAL_OR_KEYWORD),
            *(Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in (*own, *further)),
        ]
    )


# So that help() and notebooks tell the options and complete their names.
vars(build_index)["__signature__"] = _signature()
_DOC = cleandoc(build_index.__doc__ or "")
build_index.__doc__ = "\n".join([_DOC, "", "Options:", *(_told(*item) for item in _OPTIONS.items())])
