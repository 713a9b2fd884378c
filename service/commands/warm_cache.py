"""`genret warm-cache`: compiles ahead what a server compiles when it first starts: modules and loops.

It opens an index of twenty titles of the sample, as a server does, and tries of every width of tokens.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import click

import genret
from genret.retrieval.defaults import sample_catalogue, small_model_dir
from genret.retrieval.errors import GenretError
from genret.service.commands.connection import json_option

_VARIABLE = "NUMBA_CACHE_DIR"  # numba's own; its loops read it when they are imported
_TITLES = 20
_VOCABULARIES = (1 << 8, 1 << 16, 1 << 17)  # tokens of 8, 16 and 32 bits


@click.command("warm-cache")
@json_option("folder: its loops and bytes")
def warm_cache_command(as_json_lines: bool) -> None:
    """Compile ahead what the first start of a server would: Python's modules, and the loops (extra numba).

    Loops go into the folder NUMBA_CACHE_DIR, else beside their files. Servers find them if genret lies in the
    same place, with the same versions of numba and Python, and if the processor has the same name and
    features: with NUMBA_CPU_NAME=generic, here and there, any of the architecture does. The folder may be
    read-only for them. Modules go beside their files, unless PYTHONDONTWRITEBYTECODE is set.
    """
    named = os.environ.get(_VARIABLE)
    has_loops = find_spec("numba") is not None
    if named and not has_loops:
        raise GenretError("there are no loops to compile: install generative-retrieval[numba]")
    folder = Path(named or genret.__path__[0])
    with tempfile.TemporaryDirectory(prefix="genret-warm-cache-") as name:
        _use_all_loops(Path(name), "auto" if not has_loops else "numba")
    # The rooms of a checkout are links, which rglob does not follow.
    rooms = (folder, *folder.glob("*/")) if has_loops else ()
    kept = {file for room in rooms for file in room.rglob("*.nbc")}
    if has_loops and not kept:
        raise GenretError(f"{folder}: no compiled loop could be kept there; the log says why")
    size = sum(file.stat().st_size for file in kept)
    if as_json_lines:
        click.echo(json.dumps({"folder": str(folder), "loops": len(kept), "bytes": size}))
    elif not has_loops:
        click.echo("modules are compiled; loops would need the extra numba")
    else:
        click.echo(f"{len(kept)} compiled loops in {folder}, {size:,} bytes")


def _use_all_loops(folder: Path, kernels: str) -> None:
    """Warm up whatever a server warms up; `folder` is for files needed on the way. Raises GenretError."""
    from genret.decoding.trie.title_trie import TitleTrie
    from genret.index_builder.cli import build_command
    from genret.retrieval.retriever import Retriever

    import_module("genret.service.serving.server")
    titles, index = folder / "titles.tsv", folder / "titles.index"
    with sample_catalogue().open(encoding="utf-8") as catalogue:
        titles.write_text("".join(islice(catalogue, 1 + _TITLES)), encoding="utf-8")
    model = str(small_model_dir())
    arguments = [str(titles), "--out", str(index), "--tokenizer", model, "--quiet"]
    build_command.main(arguments, prog_name="genret build", standalone_mode=False)
    Retriever.open(index, model, device="cpu").warm_up()
    for size in _VOCABULARIES:
        TitleTrie.from_rows([(1, 0)], size, kernels=kernels)
