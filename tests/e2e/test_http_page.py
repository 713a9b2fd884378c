"""The examples of docs/http.md print what the page says, but for times, digests and last digits."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sample_index import build_sample_index

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)

_FITTED = (
    "score|probability|nothing_fits|names|texts|queries|model|mass_lower_bound|num_nodes|num_scored|"
    "(?:peak|per_branch|saved)_bytes"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="needs bash, curl and jq"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    build_sample_index(folder / "sample.index", with_queries=True)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where the server of the page listens, on ports of its own."""
    command = [sys.executable, "-m", "genret", "serve", "sample.index", "--port", "0", "--http-port", "0"]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        ready = server.stderr.readline()
        found = re.search(r"HTTP on (\S+)", ready)
        assert found is not None, ready
        yield found.group(1)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


def commands_of(block: str) -> tuple[list[str], str]:
    """Return the commands of a block, and what it says they print."""
    commands: list[str] = []
    printed: list[str] = []
    open_until = ""
    for line in block.splitlines():
        if commands and open_until:
            commands[-1] += f"\n{line}"
            open_until = "" if line == open_until else open_until
        elif line.startswith("$ "):
            commands.append(line[2:])
            heredoc = re.search(r"<<'(\w+)'$", line)
            open_until = heredoc.group(1) if heredoc else ""
        elif commands and commands[-1].endswith("\\"):
            commands[-1] += f"\n{line}"
        else:
            printed.append(line)
    return commands, "\n".join(printed)


def masked(text: str) -> str:
    if text.startswith("{\n"):  # metadata come in any order
        text = json.dumps(json.loads(text), sort_keys=True, indent=2)
    text = re.sub(r'"[0-9a-f]{32}"', '"DIGEST"', text)
    # What depends on the ranking, which is fitted when the index is built.
    text = re.sub(rf'"({_FITTED})": "?-?[\d.]+"?', r'"\1": FITTED', text)
    return re.sub(
        r"-?\d+\.\d+", lambda number: f"{float(number.group()):.3f}", re.sub(r"_ms\": .*", "_ms", text)
    )


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_prints_what_the_page_says(number: int, folder: Path, address: str) -> None:
    commands, says = commands_of(BLOCKS[number])
    script = "set -o pipefail\n" + "\n".join(commands).replace("localhost:8080", address)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert masked(done.stdout.rstrip("\n")) == masked(says)
    assert commands
    assert says


def test_the_page_has_an_example_for_every_method() -> None:
    for path in re.findall(r"\| `(?:POST|GET) (/v1/\S+)` \|", PAGE):
        shown = path.replace("NAME", "sample.index")
        assert shown in "".join(BLOCKS) or path == "/v1/indexes/NAME", path
