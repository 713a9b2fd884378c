"""What docs/operations.md names is there: commands, flags, settings, metrics, alerts, messages, files.

The commands of the README are, too.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from genret.service.commands.serve import serve_command
from genret.service.configuration.settings import SETTINGS
from genret.service.main import COMMANDS, cli
from tests.service.full_metrics import families

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Prose in the order of the page, and blocks of commands apart from it.
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
CODE = re.findall(r"`([^`\n]+)`", PROSE)
BLOCKS = re.findall(r"```\w*\n(.*?)```", PAGE + README, re.DOTALL)
LINES = [line.removeprefix("$ ") for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]


def commands() -> Iterator[list[str]]:
    """Every command that a reader may copy, in blocks, in prose and in tables."""
    for text in (*LINES, *CODE):
        if text.startswith(("genret ", "python benchmarks/", "benchmarks/")) and " " in text:
            yield shlex.split(text.removeprefix("python ").partition(" | ")[0], comments=True)


def named(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words begin with, and what is given to it."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command {' '.join(words[:2])}"
        command, rest = found, rest[1:]
    return command, rest


def flags_of(command: click.Command) -> set[str]:
    return {
        flag for option in command.params for flag in (*option.opts, *option.secondary_opts) if flag[0] == "-"
    }


def test_commands_of_genret_and_their_flags_are_there() -> None:
    checked = [words for words in commands() if words[0] == "genret"]
    assert len(checked) > 12
    for words in checked:
        command, rest = named(words)
        missing = {word for word in rest if word.startswith("--")} - flags_of(command)
        assert not missing, f"{' '.join(words)}: {command.name} has no {missing}"


@pytest.mark.slow
def test_benchmarks_and_their_flags_are_there() -> None:
    checked = [words for words in commands() if words[0].startswith("benchmarks/")]
    assert {words[0] for words in checked} >= {"benchmarks/service_load.py", "benchmarks/service_memory.py"}
    for script in {words[0] for words in checked}:
        done = subprocess.run(
            [sys.executable, script, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        for words in checked:
            own = words[: words.index("--")] if "--" in words else words
            passed_on = words[len(own) :]
            if words[0] == script:
                assert all(word in done.stdout for word in own if word.startswith("--")), words
            flags = {word for word in passed_on if word.startswith("--") and word != "--"}
            assert flags <= flags_of(serve_command)


def test_lonely_flags_are_of_a_command() -> None:
    known = {flag for name in COMMANDS for flag in flags_of(named(["genret", name])[0])}
    foreign = {"--", "--stop-timeout", "--inplace"}  # of shells, docker and rsync
    flags = {code.split()[0] for code in CODE if code.startswith("--")}
    assert flags
    assert flags - foreign <= known


def test_settings_are_there() -> None:
    keys = {".".join(setting.key) for setting in SETTINGS}
    sections = {setting.key[0] for setting in SETTINGS}
    found = {
        code
        for code in CODE
        if re.fullmatch(r"[a-z]+(\.[a-zA-Z_]+)+", code) and code.split(".")[0] in sections
    }
    assert len(found) > 10
    assert {key.replace("models.NAME.", "models.default.") for key in found} - keys == set()


def test_metrics_are_there() -> None:
    found = {code for code in CODE if code.startswith("genret_")}
    assert len(found) > 6
    assert found <= set(asyncio.run(families()))


def test_alerts_are_there() -> None:
    rules = (ROOT / "deploy" / "alerts.yaml").read_text(encoding="utf-8")
    found = {code for code in CODE if re.fullmatch(r"Genret[A-Z]\w+", code)}
    assert len(found) == 6
    assert all(f"- alert: {name}\n" in rules for name in found)


def test_what_logs_are_said_to_say_is_said_somewhere() -> None:
    table = PAGE[PAGE.index("## What goes wrong") : PAGE.index("## Back up")]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    said = [code for row in rows for code in re.findall(r"`([^`]+)`", row[3]) if " " in code]
    assert len(said) >= 9
    sources = " ".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for room in ("service", "retrieval", "decoding")
        for path in (ROOT / room).rglob("*.py")
    )
    for text in said:
        # What a watched file is called stands apart from what is said of it.
        text = re.sub(r"^(the TLS certificate|the token file) ", r"\1…", text)
        for piece in filter(None, (piece.strip(" ,;:") for piece in text.split("…"))):
            if piece != "Address already in use":  # the system's own words
                assert piece in sources, f"{text!r}: nothing says {piece!r}"


def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in re.findall(r"^#+ (.*)", PAGE, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        if file:
            assert (ROOT / "docs" / file).exists(), target
        else:
            assert anchor in anchors, target
