"""Copies of what a build or an update reads from elsewhere: files at addresses, and results of queries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout

from genret.index_builder.build_options import BuildOptions
from genret.index_builder.past_queries import QueryFile
from genret.index_builder.publish import COPIES_DIR, check_place, temporary_work
from genret.retrieval.errors import IndexDirectoryError, InputError
from genret.retrieval.index.layout import WORK_DIR
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.database_rows import is_database, query_result
from genret.retrieval.sources.memory_rows import MemoryRows
from genret.retrieval.sources.remote_files import RemotePath, fetched, is_remote, shown_address

_SAMPLE_HINT = "; so it is with --sample: only a file on this machine is read in part"
_EXAMPLES = "sqlite:///shop.db or postgresql://user@host/database"
Source: TypeAlias = str | Path | MemoryRows


@dataclass(frozen=True, slots=True)
class SourceCopies:
    """Makes the copies in a folder, which is made with the first one.

    All methods raise what `fetched` raises, and `IndexDirectoryError` if another build makes copies there, or
    one cannot be written.
    """

    folder: Path
    progress: StepProgress
    hint: str = ""  # said with the size of what is copied

    def of(self, sources: Sequence[Source]) -> list[Source]:
        """Return sources with copies in the place of what lies elsewhere."""
        found: list[Source] = []
        for source in sources:
            address = source.address if isinstance(source, RemotePath) else source
            if is_database(address):
                shown = shown_address(str(address))
                raise InputError("sources", f"{shown}: a database needs a query; say which with --sql")
            if isinstance(address, str) and is_remote(address):
                with self._locked():
                    found += fetched(address, self.folder, self.progress, self.hint)
            else:
                found.append(source)
        return found

    def of_query(self, sources: Sequence[Source], sql: str) -> list[Source]:
        """Return the rows of a query as the only source.

        Raises:
            InputError: the sources are not one database.
        """
        if len(sources) != 1 or not isinstance(address := sources[0], str) or not is_database(address):
            got = ", ".join(shown_address(str(one)) if is_remote(str(one)) else str(one) for one in sources)
            raise InputError("sql", f"expected one address, {_EXAMPLES}, got {got}")
        with self._locked():
            return [query_result(address, sql, self.folder / "query", self.progress)]

    def for_options(self, options: BuildOptions) -> BuildOptions:
        """Return options with copies of the files of aliases and past queries."""
        if options.aliases is not None:
            copies = self.of_paths([options.aliases])
            if len(copies) != 1:
                raise InputError("aliases", f"expected one file, got {len(copies)}")
            options = replace(options, aliases=copies[0])
        if (wish := options.evidence) is None:
            return options
        return replace(options, evidence=replace(wish, queries=self.of_queries(wish.queries)))

    def of_queries(self, files: Sequence[QueryFile]) -> tuple[QueryFile, ...]:
        """Return files of past queries with copies of those that lie elsewhere."""
        return tuple(replace(file, path=path) for file in files for path in self.of_paths([file.path]))

    def of_paths(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """Return paths with copies of those that are addresses."""
        return tuple(path for path in self.of(paths) if isinstance(path, Path))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", timeout=0):
                yield
        except Timeout:
            raise IndexDirectoryError(f"{self.folder}: another build makes its copies there") from None
        except OSError as error:
            where = error.filename or self.folder
            raise IndexDirectoryError(f"{where}: cannot be written: {error.strerror or error}") from error


@contextmanager
def source_copies(
    index: Path, is_dry_run: bool, resume: bool, progress: StepProgress
) -> Iterator[SourceCopies]:
    """Yield the maker of the copies of a build: in its work directory, or for a dry run in a temporary one.

    Those in the work directory stay until the build is published. Without `resume` they are made anew.

    Raises:
        IndexDirectoryError: `index` is no index directory.
    """
    if is_dry_run:
        with temporary_work() as place:
            yield SourceCopies(place / COPIES_DIR, progress, _SAMPLE_HINT)
        return
    folder = index / WORK_DIR / COPIES_DIR
    check_place(index)
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    yield SourceCopies(folder, progress)
    if folder.exists():  # an update that adds nothing leaves the work directory alone
        shutil.rmtree(folder, ignore_errors=True)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()
