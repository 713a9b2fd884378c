"""`genret warm-cache`: what it compiles is all that a server looks for, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from genret.service.main import cli
from tests.commands import refusal
from tests.service.server_process import ENVIRONMENT, GENRET, ServerProcess, genret
from tests.trie_oracles import needs_numba

FOLDER, GENERIC = "NUMBA_CACHE_DIR", {"NUMBA_CPU_NAME": "generic"}


def warm(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return genret("warm-cache", *flags, **GENERIC, **{FOLDER: str(folder)})


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_without_a_folder_and_numba_the_modules_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['numba'] = None")
    compiled = tmp_path / "pyc"
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"}
    environment |= {"PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}
    environment.pop(FOLDER, None)
    command = [*GENRET, "warm-cache", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(ran.stdout)["loops"] == 0
    made = {file.name.split(".")[0] for file in compiled.rglob("*.pyc")}
    assert {"server", "retriever", "http_app", "modeling_llama"} <= made


def test_without_numba_there_is_nothing_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr("genret.service.commands.warm_cache.find_spec", lambda name: None)
    assert "install generative-retrieval[numba]" in refusal(cli, "warm-cache", code=1)


@needs_numba
@pytest.mark.slow
def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = warm(tmp_path / "file")
    assert result.returncode == 1
    assert f"{tmp_path / 'file'}: no compiled loop could be kept there" in result.stderr


@needs_numba
@pytest.mark.slow
def test_a_server_compiles_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_index: Path, checkpoint: Path
) -> None:
    ran = warm(tmp_path)
    assert ran.returncode == 0, ran.stderr
    kept = stamps(tmp_path)
    loops = [path for path in kept if path.suffix == ".nbc"]
    assert f"{len(loops)} compiled loops in {tmp_path}" in ran.stdout
    told = json.loads(warm(tmp_path, "--json").stdout)  # finds them all
    size = sum(path.stat().st_size for path in loops)
    assert told == {"folder": str(tmp_path), "loops": len(loops), "bytes": size}
    for name, value in {FOLDER: str(tmp_path), **GENERIC}.items():
        monkeypatch.setenv(name, value)
    with ServerProcess(str(tiny_index), "--model", str(checkpoint)) as server:
        server.address()
        server.send(signal.SIGTERM)
        assert server.exit_code() == 0
    assert stamps(tmp_path) == kept
