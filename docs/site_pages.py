"""Gives MkDocs the pages as they lie in the repository, so that links between them hold on the site, too.

A hook of mkdocs.yml: README.md is the home page; pages outside docs/, as deploying, are among the others.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "*.md", "docs/**/*.md", "docs/images/*", "docs/*.css", "deploy/**/*.*", "benchmarks/*.md", "examples/*",
    "data/README.md", "decoding/grammar/README.md",
)  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the repository's pages in the place of those of `docs_dir`."""
    for file in list(files.documentation_pages()) + list(files.media_files()):
        if not file.src_uri.startswith(("assets/", "search/")):
            files.remove(file)
    found = {path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()}
    for path in sorted(found):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
