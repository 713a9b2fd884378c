"""Counts the mentions that a run has linked, and shows its progress, its speed and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from genret.retrieval.progress import ProgressDisplay, duration

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


@dataclass(slots=True)
class LinkCounts:
    """Counts of what was linked."""

    num_documents: int = 0  # documents read; parts of a long one count once, with the part they begin with
    num_mentions: int = 0  # mentions asked about
    num_linked: int = 0  # mentions linked to an entity
    num_nil: int = 0  # mentions linked to none
    num_failed: int = 0  # mentions that ended by an error; they are NIL too
    num_cached: int = 0  # mentions answered from the cache, without the model
    num_unproven: int = 0  # lists that were to be exact and are not certified
    num_bad_documents: int = 0  # lines that are no documents
    num_rows: int = 0  # rows written

    def add(self, other: LinkCounts) -> None:
        """Add another's counts."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LinkCounts:
        """Read the fields from an object; missing ones are 0, and a value that is no integer is an error."""
        found = {one.name: value.get(one.name, 0) for one in fields(cls)}
        if not all(type(number) is int for number in found.values()):
            raise ValueError(f"expected integers, got {found}")
        return cls(**found)


class LinkListener(NamedTuple):
    """Listener to the linking of documents."""

    counts: LinkCounts  # added to on the way
    complain: Callable[[str], None]  # gets one line per bad document and per mention that failed
    report: Callable[[LinkCounts], None] = lambda counts: None  # gets the counts after every batch


_MAX_WARNINGS = 50


@dataclass(slots=True)
class Progress:
    """Progress of a run. Rates are of this session alone: the work of an earlier one took no time now."""

    num_documents: int  # documents of the corpus
    num_shards: int  # shards of the corpus
    done_shards: int  # finished shards, those of earlier sessions included
    resumed: LinkCounts  # counts of shards that earlier sessions finished
    recorded: LinkCounts  # counts of all finished shards
    # Increments of this session, of unfinished shards too.
    reported: LinkCounts = field(default_factory=LinkCounts)
    is_split: bool = False  # whether long documents are linked in parts; the time left then goes by shards
    resumed_shards: int = 0  # shards that earlier sessions finished
    begun: float | None = None  # monotonic time of the first report; None: there was none

    @property
    def counts(self) -> LinkCounts:
        """Counts so far: records are exact, reports are sooner; neither may be behind the other."""
        seen = LinkCounts()
        for one in fields(LinkCounts):
            early = getattr(self.resumed, one.name) + getattr(self.reported, one.name)
            setattr(seen, one.name, max(early, getattr(self.recorded, one.name)))
        seen.num_documents = min(seen.num_documents, self.num_documents)
        return seen

    def rates(self, now: float) -> tuple[float, float]:
        """Return documents and mentions per second of this session; 0 before the first worker is ready."""
        seconds = 0.0 if self.begun is None else now - self.begun
        if seconds <= 0:
            return 0.0, 0.0
        seen = self.counts
        return (
            (seen.num_documents - self.resumed.num_documents) / seconds,
            (seen.num_mentions - self.resumed.num_mentions) / seconds,
        )

    @property
    def steps(self) -> tuple[int, int, int]:
        """Shards or documents that were done before this session, that are done, and that there are."""
        if self.is_split:
            return self.resumed_shards, self.done_shards, self.num_shards
        return self.resumed.num_documents, self.counts.num_documents, self.num_documents

    def seconds_left(self, now: float) -> float | None:
        """Estimate how long the rest takes; None while nothing is done in this session."""
        before, done, total = self.steps
        if self.begun is None or now <= self.begun or done <= before:
            return None
        return (total - done) * (now - self.begun) / (done - before)


class LinkDisplay:
    """Display of a run and of the first of its warnings; without a `ProgressDisplay` nothing is shown."""

    def __init__(self, display: ProgressDisplay | None = None) -> None:
        self._display = display
        self._num_warnings = 0
        if display is not None:
            display.begin("", note="reading the inputs")

    def planning(self, num_bytes: int) -> None:
        """Show how many bytes of the inputs have been read."""
        if self._display is not None:
            self._display.show(f"reading the inputs: {num_bytes / 1e6:,.0f} MB")

    def show(self, progress: Progress) -> None:
        """Show the progress."""
        if self._display is not None:
            _, done, total = progress.steps
            self._display.show(describe(progress, self._display.clock()), done, total)

    def warn(self, text: str) -> None:
        """Show a warning; a corpus of a wrong form has one per line, and only the first ones are shown."""
        self._num_warnings += 1
        if self._display is None or self._num_warnings > _MAX_WARNINGS + 1:
            return
        if self._num_warnings > _MAX_WARNINGS:
            text = "further warnings are not shown; failed mentions have their error in the output"
        else:
            text = f"warning: {text}"
        self._display.say(text)


@contextmanager
def shown_run(quiet: bool) -> Iterator[LinkDisplay]:
    """Yield the display of a run: a line that changes on a terminal, else lines now and then, or nothing."""
    if quiet:
        yield LinkDisplay()
        return
    with ProgressDisplay(_columns) as display:
        yield LinkDisplay(display)


def _columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, SpinnerColumn, TextColumn

    return [SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[note]}", markup=False)]


def describe(progress: Progress, now: float) -> str:
    """Return a line about a run."""
    documents, mentions = progress.rates(now)
    seen = progress.counts
    text = f"{seen.num_documents:,}/{progress.num_documents:,} documents"
    text += f", {progress.done_shards:,}/{progress.num_shards:,} shards"
    if (left := progress.seconds_left(now)) is not None:  # before what a narrow terminal has no room for
        text += f", {duration(left)} left"
    if documents or mentions:
        text += f", {documents:,.1f} docs/s, {mentions:,.1f} mentions/s"
    return f"{text}: {outcome(seen)}"


def outcome(counts: LinkCounts) -> str:
    """Return the number of linked, NIL, failed and cached mentions, in words."""
    text = f"{counts.num_linked:,} linked, {counts.num_nil:,} NIL"
    if counts.num_failed:
        text += f", {counts.num_failed:,} failed"
    if counts.num_cached:
        text += f", {counts.num_cached:,} cached"
    return text


def sentence(counts: LinkCounts) -> str:
    """Return a run's totals in words."""
    text = f"{counted(counts.num_documents, 'document')}, {counted(counts.num_mentions, 'mention')}: "
    text += outcome(counts)
    if counts.num_unproven:
        text += f" ({counted(counts.num_unproven, 'list')} not proven exact)"
    if counts.num_bad_documents:
        text += f"; {counted(counts.num_bad_documents, 'bad document')} left out"
    return text


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
