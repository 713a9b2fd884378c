"""The site of the documentation: no warning, every page, every public name, nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import genret
from genret.service import client
from tests.e2e.pages import ROOT, text_of

PAGES = sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # a notice on Material's end of life in 2027
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return site


def test_every_page_is_on_the_site_and_in_the_search(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    searched = {entry["location"].partition("#")[0] for entry in found}
    for page in PAGES:
        address = page.removesuffix(".md").replace("README", "index") + ".html"
        assert (site / address).is_file(), page
        assert address in searched


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    named = re.findall(r"^::: (\S+)$", text_of("docs/api.md"), re.MULTILINE)
    public = [f"genret.{name}" for name in genret.__all__]
    assert named == public + [f"genret.service.client.{name}" for name in client.__all__]
    html = (site / "docs" / "api.html").read_text(encoding="utf-8")
    for name in named:
        assert f'id="{name}"' in html, name
    assert "Raises:" in html


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loaded = r"<(?:script|img|iframe|source)[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    loaded += r"|<link[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+|url\([\"']?(?:https?:)?//[^)]*"
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert re.findall(loaded, file.read_text(encoding="utf-8")) == [], file
