"""What became of every keyword of a schema."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Handling = Literal["enforced", "annotation", "refused", "vacuous here"]


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """One occurrence of a keyword.

    Attributes:
        keyword: The keyword.
        pointer: Where it stands, as a URI fragment.
        how: "enforced": every answer obeys it; "annotation": it says nothing about what is valid; "vacuous
            here": it could, but not beside its neighbours; "refused": it cannot be enforced, so nothing is
            compiled.
        note: Why, where that is not plain.
    """

    keyword: str
    pointer: str
    how: Handling
    note: str = ""


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """All keywords of a schema, in its order.

    Attributes:
        dialect: Under which version of JSON Schema it was read.
        entries: One per occurrence.
    """

    dialect: str
    entries: tuple[ReportEntry, ...]

    def counts(self) -> dict[Handling, int]:
        """How many occurrences were handled in which way."""
        counts = Counter(entry.how for entry in self.entries)
        return {how: counts[how] for how in ("enforced", "annotation", "vacuous here", "refused")}

    def refusals(self) -> tuple[ReportEntry, ...]:
        """What stands in the way."""
        return tuple(entry for entry in self.entries if entry.how == "refused")

    def table(self) -> list[tuple[str, str, str, str]]:
        """Rows to print: pointer, keyword, how it is handled, note."""
        return [(entry.pointer, entry.keyword, entry.how, entry.note) for entry in self.entries]

    def with_refusal(self, keyword: str, pointer: str, reason: str) -> SchemaReport:
        """The report with one occurrence refused, or one more entry where no keyword stands there."""
        refused = ReportEntry(keyword, pointer, "refused", reason)
        entries = tuple(refused if entry.pointer == pointer else entry for entry in self.entries)
        if refused not in entries:
            entries += (refused,)
        return SchemaReport(self.dialect, entries)
