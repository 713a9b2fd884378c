"""The site of the documentation: no warning, every page, every public name, nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import genret
from genret.service import client
from tests.e2e.pages import ROOT, text_of

CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PAGES = sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # a notice on Material's end of life in 2027
    return subprocess.run(command, cwd=root, env=quiet, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return site


def test_every_page_is_on_the_site_and_in_the_search(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    searched = {entry["location"].partition("#")[0] for entry in found}
    for page in PAGES:
        address = page.removesuffix(".md").removesuffix("README").rstrip("/") + "/"
        assert (site / address / "index.html").is_file(), page
        assert address in searched


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    named = re.findall(r"^::: (\S+)$", text_of("docs/api.md"), re.MULTILINE)
    public = [f"genret.{name}" for name in genret.__all__]
    assert named == public + [f"genret.service.client.{name}" for name in client.__all__]
    html = (site / "docs" / "api" / "index.html").read_text(encoding="utf-8")
    for name in named:
        assert f'id="{name}"' in html, name
    assert "Raises:" in html


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loaded = r"<(?:script|img|iframe|source)[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    loaded += r"|<link[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+|url\([\"']?(?:https?:)?//[^)]*"
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert re.findall(loaded, file.read_text(encoding="utf-8")) == [], file


@pytest.mark.parametrize("broken", ["nowhere.md", "disc.md#no-such-heading", "../deploy/nothing.toml"])
def test_a_link_that_leads_nowhere_is_refused(broken: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for page in ("docs/disc.md", "docs/site_pages.py", "mkdocs.yml", "README.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    (tmp_path / "README.md").write_text("# Home\n", encoding="utf-8")
    (tmp_path / "docs" / "disc.md").write_text(f"# DISC\n\n[a link]({broken})\n", encoding="utf-8")
    small = CONFIG.split("\nnav:\n")[0].replace("omitted_files: warn, ", "")
    (tmp_path / "mkdocs.yml").write_text(small, encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert "docs/disc.md" in warning
    assert broken in warning
