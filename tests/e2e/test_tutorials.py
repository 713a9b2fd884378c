"""The tutorials run as a reader would run them, and print what the pages say."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.pages import ROOT, blocks, differ, run_command, shell, text_of
from tests.e2e.test_page_examples import commands_of
from tests.service.server_process import ServerProcess
from tests.shared_titles import shared_file

SEARCH = text_of("docs/tutorials/search.md")


@pytest.mark.slow
def test_the_tutorial_of_search_prints_what_it_says(tmp_path: Path) -> None:
    before, after = SEARCH.split("\ngenret serve places.index\n")
    asked = [blocks(part, "console") for part in (before, after)]
    assert [len(part) for part in asked] == [3, 2]
    for block in asked[0]:
        _check(block, tmp_path)
    with ServerProcess("places.index", cwd=tmp_path) as server:
        address = server.address()
        for block in asked[1]:
            _check(block, tmp_path, GENRET_QUERY_ADDRESS=address, GENRET_RELOAD_ADDRESS=address)


def _check(block: str, folder: Path, **variables: str) -> None:
    commands, says = commands_of(block)
    printed = "".join(shell(command, folder, **variables) for command in commands)
    assert _timeless(printed.rstrip("\n")) == _timeless(says)


def _timeless(text: str) -> str:
    """Leave out times, memory and digests, which differ between machines and versions of libraries."""
    return re.sub(r"[\d.]+ s, peak memory \d+ MiB|[0-9a-f]{32}", "…", text)


@pytest.mark.slow
def test_half_a_million_names_of_ones_own_are_asked_by_four_commands_from_a_clone_on(tmp_path: Path) -> None:
    """In an empty directory and an environment of its own; how long it takes is printed (pytest -s)."""
    (block,) = blocks(SEARCH, "sh")
    commands = block.splitlines()
    assert len(commands) <= 4
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("there is no repository to clone, or no git")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    probe = [*pip, "--dest", tmp_path / "probe", "click"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no package index is reachable")
    titles = pq.read_table(shared_file("titles", "wikipedia_en.parquet"), columns=["title"])["title"]
    with (tmp_path / "names.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title"])
        writer.writerows([title] for title in titles.slice(0, 500_000).to_pylist())
    asked = titles[250_000].as_py()
    mistyped = asked[:3] + asked[4] + asked[3] + asked[5:]
    own = {"URL": shlex.quote(str(ROOT)), '"a mistyped name"': f"{shlex.quote(mistyped)} --json"}
    foreign = ("GENRET_DEFAULT_MODEL", "PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    environment |= {"PYTHON": sys.executable, "TORCH_INDEX": ""}  # torch, too, from where pip finds all else
    for command in commands:
        for word, ours in own.items():
            command = command.replace(word, ours)
        began = time.monotonic()
        printed = run_command(["bash", "-c", command], tmp_path, environment)
        print(f"{time.monotonic() - began:6.1f} s  {command}")
    found = [candidate["title"] for candidate in json.loads(printed)["candidates"]]
    assert asked in found[:3]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("openssl", "curl", "jq"))), reason="needs openssl, curl and jq"
)
def test_the_tutorial_of_the_platform_prints_what_it_says(tmp_path: Path) -> None:
    """One shell from the first command to the last, on ports of its own."""
    page = text_of("docs/tutorials/platform.md")
    asked = [commands_of(block) for block in blocks(page, "console")]
    assert len(asked) == 5
    assert asked[0][0][0] in SEARCH, "both pages have the same names"
    script = "\n".join("\n".join(part) for part, _ in asked)
    says = "\n".join(said for _, said in asked if said)
    for port in ("50051", "9464"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            own = str(free.getsockname()[1])
        script, says = script.replace(port, own), says.replace(port, own)
    assert shell(f"trap 'kill %1 2>/dev/null || true' EXIT\n{script}", tmp_path) == f"{says}\n"


def run_cells(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Run the code of a notebook, and yield every cell with how its last expression is shown."""
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            *statements, last = ast.parse("".join(cell["source"])).body
            value = None
            if not isinstance(last, ast.Expr):
                statements.append(last)
            exec(compile(ast.Module(statements, []), "<cell>", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            yield cell, "" if value is None else repr(value)


def test_the_notebook_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "places.ipynb").read_text(encoding="utf-8"))
    ran = list(run_cells(notebook))
    for cell, shown in ran:
        said = "".join("".join(output["data"]["text/plain"]) for output in cell["outputs"])
        assert not differ(shown, said)
    assert len(ran) == 4
    assert len(ran[0][0]["source"]) == 6, "the first answer takes six lines"
    assert ran[0][1] == "'Lake Constance'"
