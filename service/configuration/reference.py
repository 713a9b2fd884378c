"""The manual's table of settings; `python -m service.configuration.reference FILE` renews it in a page."""

from __future__ import annotations

import sys
from pathlib import Path

from service.configuration.kinds import Switch
from service.configuration.settings import SETTINGS, Setting

BEGIN = (
    "<!-- Made by `python -m service.configuration.reference docs/configuration.md`; a test compares it. -->"
)
END = "<!-- End of what is made. -->"


def settings_table() -> str:
    """Return every setting as a Markdown table."""
    lines = ["| Key | Value | Default | Flag and variable | What it is |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, SETTINGS)]) + "\n"


def renewed(page: str) -> str:
    """Return a page with the table between its marks renewed.

    Raises:
        ValueError: the page does not have the two marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{settings_table()}\n{END}{after}"


def _row(setting: Setting) -> str:
    flag = setting.flag
    if setting.negation is not None:
        flag += f"`, `{setting.negation}"
    elif setting.repeated:
        flag += f" {setting.metavar}"
    cells = (
        f"`{setting.dotted}`",
        setting.kind.expected,
        _default(setting),
        f"`{flag}`<br>`{setting.variable}`",
        setting.help,
    )
    return f"| {' | '.join(cells)} |"


def _default(setting: Setting) -> str:
    if setting.default is None:
        return setting.unset
    if isinstance(setting.kind, Switch):
        return f"`{str(setting.default).lower()}`"
    return f"`{setting.default}`"


def main(file: Path) -> None:
    """Renew the table in a Markdown file."""
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
