"""Ask damaged indexes in forked processes: `python -m tests.fuzz.asking_child FOLDER KIND …`.

The first line of the answer names the folders of sound versions, one for each kind of vectors. Every line of
standard input is then the number of a version and a damage, answered by the outcome as one line of JSON:
{"result": …}, {"typed": …}, {"untyped": …} or, where a signal ended the process, {"signal": …}.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import genret.index_builder.build_options
import genret.retrieval.vectors.encoder
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, EvidenceOptions, VectorBuildOptions
from genret.index_builder.past_queries import QueryFile
from genret.retrieval.checkpoints import folder_fingerprint
from genret.retrieval.defaults import sample_catalogue, small_model_dir
from genret.retrieval.errors import GenretError
from genret.retrieval.index.inspect_command import _facts, _render
from genret.retrieval.index.layout import PRIOR_FILE
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.index.priors import Prior, priors_to_bytes
from genret.retrieval.index.reader import read_manifest
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import version_dir
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.ranking.prior import NULL_QUERIES, null_prompts, prompts_digest
from genret.retrieval.retriever import Retriever
from genret.retrieval.sources.columns import ColumnMapping
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import Mention
from genret.retrieval.vectors.vector_maker import VectorOptions
from tests.fuzz.damage import Damage, write_damaged
from tests.index_fixtures import files_of
from tests.trigram_encoder import TRIGRAMS, TrigramEncoder
from tests.vector_fixtures import rename

# A healthy case takes a second or two of CPU time. The first limit ends what is busy, the second what waits.
_LIMIT_CPU_S, _LIMIT_S = 60, 600
_ADDRESS_SPACE = 12 << 30
_NUM_ENTITIES = 150
_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "x-genret-index": "titles"}},
    "required": ["title"],
}


def build_versions(folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Build an index for each kind of vectors, with all that a version can hold; return the versions."""
    genret.retrieval.vectors.encoder.EncoderEmbedder = TrigramEncoder  # type: ignore[assignment, misc]
    genret.index_builder.build_options.local_folder = lambda *_: None  # type: ignore[assignment]
    folder.mkdir(parents=True, exist_ok=True)
    head, *lines = sample_catalogue().read_text().splitlines()
    source = folder / "titles.tsv"
    every = [f"{head}\tfame\tseen\tyear"]
    for number, line in enumerate(lines[:: len(lines) // _NUM_ENTITIES][:_NUM_ENTITIES]):
        entity_id, title, aliases, rest = line.split("\t", 3)
        aliases = f"{aliases}|shared {number // 3}".strip("|")
        numbers = f"{number % 7}\t{number % 2 == 0}\t{number / 4}"
        every.append(f"{entity_id}\t{title}\t{aliases}\t{rest}\t{numbers}")
    source.write_text("\n".join(every) + "\n")
    ids = [line.partition("\t")[0] for line in every[1:]]
    asked = [f"question {number % 50} about it\t{entity_id}" for number, entity_id in enumerate(ids)]
    queries = folder / "queries.tsv"
    queries.write_text("\n".join(["query\tentity_id", *asked]) + "\n")
    model = small_model_dir()
    tokenizer, config = TextTokenizer.load(model), CheckpointConfig.load(model)
    evidence = EvidenceOptions(
        queries=(QueryFile(queries),), ranking=sample_catalogue().with_name("ranking.json")
    )
    versions = []
    for number, kind in enumerate(kinds):
        options = BuildOptions(
            out=folder / f"{number}.index",
            rendering=config.title_rendering(),
            mapping=ColumnMapping(weight="fame", types={"seen": "bool"}),
            evidence=evidence,
            vectors=VectorBuildOptions(TRIGRAMS, VectorOptions(kind=kind)),
        )
        build_index(source, tokenizer, options)
        prior = Prior(
            folder_fingerprint(Path(tokenizer.source)),
            NULL_QUERIES,
            prompts_digest(null_prompts(config, tokenizer)),
            10.0,
            -np.random.default_rng(number).random(_NUM_ENTITIES, np.float32) * 20,
        )
        versions.append(_with_prior(options.out, priors_to_bytes([prior])))
    return versions


def _with_prior(index: Path, data: bytes) -> Path:
    folder = version_dir(index)
    (folder / PRIOR_FILE).write_bytes(data)
    manifest, _ = read_manifest(folder)
    listed = [*manifest.files, FileEntry(PRIOR_FILE, len(data), digest_bytes(data))]
    return rename(index, folder, replace(manifest, files=tuple(sorted(listed, key=lambda file: file.name))))


def ask(retriever: Retriever, path: Path) -> list[str]:
    """Ask an index everything once; return the errors met. What is no GenretError is raised."""
    errors = []
    famous = "kind != 'x' and fame > 1"
    with_a = "title like '%a%' and seen"
    with retriever.open_another(path) as opened:
        queries = ["large cat", opened.index.entity(3).title]
        ids = [opened.index.entity(number).entity_id for number in (0, 7, 100)]
        for step in (
            lambda: opened.retrieve(queries[0], k=5, method="beam"),
            lambda: opened.retrieve(queries[1], k=2, method="beam", exact=True, filter=famous),
            lambda: opened.retrieve(queries[0], method="disc", seed=1, num_samples=2),
            lambda: opened.retrieve(queries[0], method="disc", seed=2, num_samples=1, top_m=3, allow_ids=ids),
            lambda: opened.retrieve(queries, k=5, method="shortlist", shortlist_size=20),
            lambda: opened.retrieve(queries[0], k=40, method="auto", shortlist_size=20, explain=True),
            lambda: opened.retrieve(queries[0], method="auto", filter=with_a, deny_ids=ids),
            lambda: opened.link(Mention("lion", "A ", " sleeps"), k=3),
            lambda: opened.score(queries[0], ["Lion", queries[1]]),
            lambda: opened.answer(queries[0], _SCHEMA, max_tokens=24),
            lambda: [opened.index.entity(n) for n in range(opened.index.num_entities)],
            lambda: [opened.index.surface(rank) for rank in range(0, opened.index.num_rows, 7)],
            lambda: opened.index.entity_by_id("nobody"),
            lambda: _render(_facts(path, opened.index, 3)),
            lambda: verify(path),
        ):
            try:
                step()
            except GenretError as error:
                errors.append(f"{type(error).__name__}: {error}")
    return errors


def outcome(retriever: Retriever, path: Path) -> dict[str, str]:
    """Return what came of asking an index in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_PROF, _LIMIT_CPU_S)
        signal.alarm(_LIMIT_S)
        faulthandler.dump_traceback_later(_LIMIT_S - 10)  # where it waits is told on standard error
        try:
            errors = ask(retriever, path)
            found = {"typed": errors[0]} if errors else {"result": "answered"}
        except GenretError as error:
            found = {"typed": f"{type(error).__name__}: {error}"}
        except BaseException as error:
            last = traceback.format_tb(error.__traceback__)[-4:]
            found = {"untyped": f"{error!r:.300}", "at": "".join(last)}
        with os.fdopen(write, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"signal": str(os.WTERMSIG(status))} if os.WIFSIGNALED(status) else json.loads(told)


def main(folder: Path, kinds: Sequence[str]) -> None:
    """Answer the damages of standard input."""
    faulthandler.enable()
    torch.set_num_threads(1)  # threads do not survive a fork
    versions = build_versions(folder, kinds)
    print(json.dumps([str(version) for version in versions]), flush=True)
    retriever = Retriever.open(versions[0].parents[1], small_model_dir(), device="cpu", name="sound")
    ask(retriever, versions[0].parents[1])  # everything is compiled
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = [files_of(version) for version in versions]
    for line in sys.stdin:
        number, _, told = line.partition(" ")
        sound, damage = files[int(number)], Damage.from_line(told)
        changed = write_damaged(folder / "damaged", sound, sound, damage)
        found = outcome(retriever, folder / "damaged")
        print(json.dumps({"changed": changed, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
