"""The explorer page's files: text that can be read (contrast as in WCAG AA), and never becomes markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from genret.service.gateway.http_app import STATIC_DIRECTORY

# Text and the grounds it stands on; then marks and outlines, which need less.
TEXTS = {
    "text": ("ground", "surface", "sunken", "accent-soft"),
    "muted": ("ground", "surface", "sunken", "good-soft", "accent-soft"),
    "accent": ("surface",),
    "on-accent": ("accent",),
    "good": ("surface", "good-soft"),
    "bad": ("surface", "bad-soft"),
}
MARKS = {"valid": ("surface", "sunken")} | dict.fromkeys(("invalid", "line-strong", "good"), ("surface",))
PAIRS = [(4.5, text, ground) for text, grounds in TEXTS.items() for ground in grounds]
PAIRS += [(3, mark, ground) for mark, grounds in MARKS.items() for ground in grounds]


def _schemes() -> dict[str, dict[str, str]]:
    sheet = (STATIC_DIRECTORY / "explorer.css").read_text(encoding="utf-8")
    roots = re.findall(r":root \{(.*?)\}", sheet, re.S)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", root)) for root in roots)
    return {"light": light, "dark": light | dark}


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("least", "text", "ground"), PAIRS)
def test_text_can_be_read_and_marks_can_be_seen(scheme: str, least: float, text: str, ground: str) -> None:
    colours = _schemes()[scheme]
    assert contrast(colours[text], colours[ground]) >= least


# What makes markup or code of text, or what the policy of the page forbids.
_FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\b"
    r"|new Function|setAttribute\(\"(on|style)|\bstyle=|<script>|\son\w+="
    r"|localStorage|sessionStorage|document\.cookie"
)


@pytest.mark.parametrize("path", sorted(STATIC_DIRECTORY.iterdir()), ids=lambda path: path.name)
def test_a_file_neither_makes_markup_of_text_nor_asks_other_hosts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert _FORBIDDEN.findall(text) == []
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_page_loads_modules_that_are_there() -> None:
    names = {path.name for path in STATIC_DIRECTORY.iterdir()}
    scripts = "".join(path.read_text(encoding="utf-8") for path in STATIC_DIRECTORY.glob("*.js"))
    loaded = set(re.findall(r'from "\./([\w.]+)"', scripts)) | {"explorer.js"}
    assert loaded == {name for name in names if name.endswith(".js")}
