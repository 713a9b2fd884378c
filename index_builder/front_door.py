"""Builds an index from a Python program: from files, dicts or tables, with the options of `genret build`.

The table of options is the command's: values go through it as they do on the command line.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Any, Literal, overload

import click

from genret.index_builder.build import BuildSummary
from genret.index_builder.build_plan import BuildPlan
from genret.index_builder.cli import BuildWish, build_wish
from genret.index_builder.command_line import KEYWORDS, left_out, shown_progress
from genret.retrieval.arguments import check_known, check_path
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.sources.memory_rows import AS_DICTS, MemoryRows, is_table
from genret.retrieval.sources.row_readers import inner_suffix
from genret.retrieval.sources.source_files import STDIN


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
        InputError: there is no such option, it has a wrong value, or goes without another one.
        GenretError: as the command: `SourceError` for the rows, which are told by number, and others.
    """
    check_known(options, _OPTIONS)
    with _by_keyword():
        _truth("progress", progress)
        check_path("out", out)
        wish = _wish({"dry_run": dry_run, **options})
        with shown_progress(not progress or not sys.stderr.isatty(), "build_index") as shown:
            made: BuildSummary | BuildPlan = wish.run(_sources(source), Path(out), shown, _warn)
    if made.report:
        _warn(left_out(made))
    if wish.advice is not None:
        _warn(wish.advice)
    return made


def _sources(source: Any) -> list[str | Path | MemoryRows]:
    given = source if isinstance(source, list | tuple) else [source]
    if not given or not all(isinstance(path, str | os.PathLike) for path in given):
        return [MemoryRows(source)]
    paths = [os.fspath(path) for path in given]
    if not all(map(_looks_like_path, paths)) and not any(map(os.path.exists, paths)):
        first = ", ".join(map(repr, paths[:2])) + ", …" * (len(paths) > 2)
        raise InputError(
            "source", f"expected paths or rows, got text that names no file: {first}; {AS_DICTS}"
        )
    return list(paths)


def _looks_like_path(text: str) -> bool:
    return text == STDIN or inner_suffix(text)[1:].isalnum() or any(mark in text for mark in "/\\*?")


def _warn(text: str) -> None:
    callers = [frame.function for frame in inspect.stack(0)]
    of_its_caller = callers.index("build_index") + 2
    warnings.warn(_in_keywords(text.removeprefix("warning: ")), stacklevel=of_its_caller)


# Without a prefix of variables: none of the environment says an option here.
_PARAMS = vars(build_wish)["__click_params__"][::-1]
_TABLE = click.Command("build_index", params=_PARAMS)
_OPTIONS = {one.opts[0].removeprefix("--").replace("-", "_"): one for one in _PARAMS}

# Quoted text, which is the user's, or a flag with the value behind it.
_QUOTED_OR_FLAG = re.compile(
    r"""(?<!\w)(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")(?!\w)"""
    r"|--([a-z][a-z-]*)(?: (\d+|[A-Z]+|all|none|csv|lines)\b)?"
)
_TYPES: dict[Any, str] = {str: "string", int: "int", float: "float", bool: "bool"}


def _in_keywords(text: str) -> str:
    """Return a text of the command with keywords in place of its flags."""

    def said(found: re.Match[str]) -> str:
        name, value = (found[1] or "").replace("-", "_"), found[2] or ""
        if name not in _OPTIONS:
            return found[0]
        value = "True" if _OPTIONS[name].is_flag else value
        return f"{name}={value!r}" if value.islower() else f"{name}={value}"

    return _QUOTED_OR_FLAG.sub(said, text)


@contextmanager
def _by_keyword() -> Iterator[None]:
    """Let the errors of the block name keywords where those of the command name flags."""
    try:
        yield
    except InputError as error:
        raise InputError(KEYWORDS.get(error.field, error.field), _in_keywords(error.message)) from None
    except GenretError as error:
        error.args = (_in_keywords(str(error)),)
        raise


def _wish(options: Mapping[str, Any]) -> BuildWish:
    words = [word for name, value in options.items() for word in _words(name, value)]
    try:
        wish: BuildWish = build_wish(**_TABLE.make_context("build_index", words).params)
    except click.BadParameter as error:
        name = next(name for name, option in _OPTIONS.items() if option is error.param)
        raise InputError(name, error.message) from None
    except click.UsageError as error:
        if isinstance(error.__cause__, InputError):  # as it was before it became a command's
            raise error.__cause__ from None
        flag, _, said = error.message.partition(" ")
        raise InputError(flag.strip("-:").replace("-", "_"), said) from None
    return wish


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, int):
        raise InputError(name, f"expected True or False, got {value!r}")
    return bool(value)


def _words(name: str, value: Any) -> Iterable[str]:
    """Return an option as it would stand on the command line."""
    option = _OPTIONS[name]
    flag = option.opts[0]
    if value is None:
        return []
    if option.is_flag:
        return [flag] if _truth(name, value) else []
    if isinstance(value, bool) or is_table(value):
        raise InputError(name, f"expected text or a number, got a {type(value).__name__}")
    if isinstance(value, Mapping):
        values = [f"{key}={_TYPES.get(kind, kind)}" for key, kind in value.items()]
    else:
        is_one = isinstance(value, str) or not isinstance(value, Iterable)
        values = [value] if is_one else list(value)
    if name == "metadata" and not values:
        return ["--no-metadata"]
    if name == "evidence_columns":
        values = [",".join(map(str, values))]
    if not option.multiple and len(values) != 1:
        raise InputError(name, f"expected one value, got {len(values)}")
    return [f"{flag}={one}" for one in values]


def _told(name: str, option: Any) -> str:
    unset = False if option.is_flag else option.default
    default = option.show_default if isinstance(option.show_default, str) else unset
    return f"    {name}: {option.help} Default: {default}."


def _signature() -> Signature:
    own = ("progress", True), ("dry_run", False)
    further = [(name, None) for name in _OPTIONS if name != "dry_run"]
    places = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("source", "out")]
    words = (Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in (*own, *further))
    return Signature([*places, *words])


# So that help() and notebooks tell the options and complete their names.
vars(build_index)["__signature__"] = _signature()
_DOC = cleandoc(build_index.__doc__ or "")
build_index.__doc__ = "\n".join([_DOC, "", "Options:", *(_told(*item) for item in _OPTIONS.items())])
