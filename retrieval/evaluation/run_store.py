"""Where an evaluation keeps what it has done: every finished run, so that it can go on after a stop.

    DIR/evaluation.json                     what the runs of this folder are of: index, model, sets, settings
    DIR/runs/SET/qrels.txt                  the judgments as TREC has them
    DIR/runs/SET/METHOD[.seedN].run         the answers as TREC has them
    DIR/runs/SET/METHOD[.seedN].jsonl       the answers with titles, log-probabilities and times
    DIR/runs/SET/METHOD[.seedN].json        that the run is done, and how long it took; written last

Files appear whole under their names or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from retrieval.errors import SourceError
from retrieval.evaluation.run_files import read_rankings, write_qrels, write_rankings, write_run
from retrieval.evaluation.staged_file import staged_file
from retrieval.evaluation.types import LabelledSet, MethodRun

IDENTITY_FILE = "evaluation.json"
RUNS_FOLDER = "runs"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What all runs of a folder are of; another one cannot go on with them.

    Attributes:
        index: Digest of the index.
        model: Digest of the checkpoint's files.
        dtype: Number type of the model.
        k: Entities asked for.
        batch_size: Queries answered together, on which times and the samples of `generate` depend.
        redirects: Digest of the file of redirects; None: none was used.
        sets: Name of each set -> digest of its files, with how many of its queries are asked.
    """

    index: str
    model: str
    dtype: str
    k: int
    batch_size: int
    redirects: str | None
    sets: Mapping[str, str]

    def difference(self, other: Identity) -> str | None:
        """Return in words what another one cannot go on with; None when it can. It may have other sets."""
        for name in ("index", "model", "dtype", "k", "batch_size", "redirects"):
            was, is_now = getattr(self, name), getattr(other, name)
            if was != is_now:
                return f"{name.replace('_', ' ')}: was {was}, is {is_now}"
        for name, digest in other.sets.items():
            if self.sets.get(name, digest) != digest:
                return f"set {name}: was {self.sets[name]}, is {digest}"
        return None


class RunStore:
    """The folder of an evaluation.

    Args:
        folder: Made when missing.
        identity: Of this evaluation.
        resume: Whether runs that are there are taken as done.

    Raises:
        SourceError: an evaluation is there and was not to be resumed, or is of something else.
    """

    def __init__(self, folder: Path, identity: Identity, resume: bool) -> None:
        self.folder = folder
        file = folder / IDENTITY_FILE
        if file.is_file():
            before = _read_identity(file)
            if not resume:
                raise SourceError(
                    f"{folder}: holds an evaluation; go on with it (--resume) or name another --out"
                )
            if difference := before.difference(identity):
                raise SourceError(f"{folder}: holds an evaluation of something else: {difference}")
            identity = Identity(**{**asdict(identity), "sets": {**before.sets, **identity.sets}})
        folder.mkdir(parents=True, exist_ok=True)
        write_text(
            file, json.dumps({"format": _FORMAT, **asdict(identity)}, indent=2, ensure_ascii=False) + "\n"
        )

    def load(self, labelled: LabelledSet, method: str, seed: int | None) -> MethodRun | None:
        """Return a run that is done, or None.

        Raises:
            SourceError: its files are malformed.
        """
        stem = self._stem(labelled.name, method, seed)
        file = _with_ending(stem, ".json")
        if not file.is_file():
            return None
        try:
            done = json.loads(file.read_text(encoding="utf-8"))
            seconds, is_constrained = float(done["seconds"]), bool(done["is_constrained"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{file}: not written by this command ({error}); remove it to run again"
            ) from error
        rankings = tuple(read_rankings(_with_ending(stem, ".jsonl")))
        if [r.query_id for r in rankings] != [q.query_id for q in labelled.queries]:
            raise SourceError(
                f"{stem}.jsonl: not the queries of the set {labelled.name}; remove it to run again"
            )
        return MethodRun(method, labelled.name, rankings, seconds, seed, is_constrained)

    def save(self, labelled: LabelledSet, run: MethodRun) -> None:
        """Keep a run that is done."""
        stem = self._stem(labelled.name, run.method, run.seed)
        stem.parent.mkdir(parents=True, exist_ok=True)
        write_qrels(stem.parent / "qrels.txt", labelled)
        write_run(_with_ending(stem, ".run"), labelled, run)
        write_rankings(_with_ending(stem, ".jsonl"), labelled, run)
        done = {
            "method": run.method,
            "set": run.set_name,
            "seed": run.seed,
            "seconds": run.seconds,
            "is_constrained": run.is_constrained,
        }
        write_text(_with_ending(stem, ".json"), json.dumps(done, ensure_ascii=False) + "\n")

    def _stem(self, set_name: str, method: str, seed: int | None) -> Path:
        name = re.sub(r"[^\w.+-]+", "-", method)
        if name != method.replace(":", "-").replace("/", "-") or method.startswith("run:"):
            # Paths of two run files may differ in what was just replaced.
            name = f"{name[:80]}-{xxhash.xxh3_64_hexdigest(method.encode())[:8]}"
        seeded = "" if seed is None else f".seed{seed}"
        return self.folder / RUNS_FOLDER / set_name / f"{name}{seeded}"


def write_text(file: Path, text: str) -> None:
    """Write a file that appears under its name only when it is complete."""
    with staged_file(file) as stream:
        stream.write(text)


def _with_ending(stem: Path, ending: str) -> Path:
    return stem.with_name(stem.name + ending)


def _read_identity(file: Path) -> Identity:
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            raise ValueError("it has another format")
        return Identity(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{file}: not written by this command ({error})") from error
