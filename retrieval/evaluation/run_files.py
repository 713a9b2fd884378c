"""Keeps runs on disk: TREC files for other tools, and JSON Lines that lose nothing.

An evaluation stores every finished run, so that it can go on after a stop:

    DIR/evaluation.json                     identity of the runs: index, model, sets, settings
    DIR/runs/SET/qrels.txt                  the judgments as TREC has them
    DIR/runs/SET/METHOD[.seedN].run         the answers as TREC has them
    DIR/runs/SET/METHOD[.seedN].jsonl       the answers with titles, log-probabilities and times
    DIR/runs/SET/METHOD[.seedN].json        the end of the run, and its time; written last

Files appear whole under their names or not at all. trec_eval reads scores as 32-bit floats, ignores ranks,
and puts documents of one score in the falling order of their ids. So written scores fall strictly, as 32-bit
floats too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from genret.retrieval.durable import replace_file, staged_file
from genret.retrieval.errors import SourceError
from genret.retrieval.evaluation.datasets.file_lines import (
    json_objects,
    spaced_fields,
    text_lines,
    wrong,
)
from genret.retrieval.evaluation.datasets.labels import decode_token, encode_token
from genret.retrieval.evaluation.labelled_sets import (
    LabelledSet,
    MethodRun,
    RankedAnswers,
    RankedEntity,
    judge,
)

_STEP = 1e-6  # the last decimal written
_LARGEST = 1e30  # far from the ends of 32-bit floats


def write_run(file: str | Path, labelled: LabelledSet, run: MethodRun) -> None:
    """Write a run as TREC has it: query, Q0, document, rank, score, tag.

    Answers stand there as metrics see them (`labelled_sets.judge`), so trec_eval says the same of this file
    and `write_qrels` as `measure` of the run. White space in ids is percent-encoded; scores are lowered as
    far as they must be to fall. A SourceError says that the file cannot be written.
    """
    tag = encode_token(run.method) or "run"
    with staged_file(file) as stream:
        for judged in judge(labelled, run):
            score_of: dict[str, float] = {}
            for entity in judged.ranking.entities:
                known = judged.query.namesakes.get(entity.entity_id, entity.entity_id)
                score_of.setdefault(known, entity.score)
            query = encode_token(judged.query.query_id)
            scores = falling_scores(list(score_of.values()))
            for rank, (entity_id, score) in enumerate(zip(score_of, scores, strict=True), 1):
                stream.write(f"{query} Q0 {encode_token(entity_id)} {rank} {score} {tag}\n")


def write_qrels(file: str | Path, labelled: LabelledSet) -> None:
    """Write the judgments of a set as TREC has them: query, 0, document, grade."""
    with staged_file(file) as stream:
        for query in labelled.queries:
            name = encode_token(query.query_id)
            stream.writelines(f"{name} 0 {encode_token(e)} {grade}\n" for e, grade in query.gold.items())


def write_rankings(file: str | Path, labelled: LabelledSet, run: MethodRun) -> None:
    """Write a run as JSON Lines, a query with all its answers on a line; infinite and NaN scores are null."""
    with staged_file(file) as stream:
        for judged in judge(labelled, run):
            ranking = judged.ranking
            row = {
                "query_id": judged.query.query_id,
                "query": judged.query.text,
                "seconds": ranking.seconds,
                "error": ranking.error,
                "entities": [
                    {**asdict(e), "score": _finite(e.score), "logprob": _finite(e.logprob)}
                    for e in ranking.entities
                ],
            }
            stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_run(file: str | Path) -> dict[str, tuple[RankedEntity, ...]]:
    """Read a TREC run, optionally compressed: query id -> its answers, best first, as trec_eval orders them.

    Ids are decoded; the title of an answer is its id. A SourceError says that the file is missing or empty,
    or names the line that is malformed or has a document for the second time.
    """
    found: dict[str, dict[str, float]] = {}
    for line, text in text_lines(file):
        fields = spaced_fields(text)
        if len(fields) != 6:
            wrong(file, line, None, "6 fields: query, Q0, document, rank, score, tag", f"{len(fields)}")
        query, _, document, rank, score, _ = fields
        if not rank.isascii() or not rank.isdigit():
            wrong(file, line, "rank", "an integer from 0", rank)
        scores = found.setdefault(decode_token(query), {})
        entity_id = decode_token(document)
        if entity_id in scores:
            wrong(file, line, "document", f"each once for the query {query}", document)
        scores[entity_id] = _score(file, line, score)
    return {query: _ordered(scores) for query, scores in found.items()}


def read_rankings(file: str | Path) -> list[RankedAnswers]:
    """Read a file of `write_rankings`; a score that is null is minus infinity.

    A SourceError names a file that is missing or empty, and a line that `write_rankings` has not written.
    """
    rankings = []
    for line, value in json_objects(file):
        try:
            known = (
                {**e, "score": -math.inf if e["score"] is None else e["score"]} for e in value["entities"]
            )
            entities = tuple(RankedEntity(**e) for e in known)
            rankings.append(RankedAnswers(value["query_id"], entities, value["seconds"], value["error"]))
        except (KeyError, TypeError) as error:
            raise SourceError(f"{file}, line {line}: not written by this command ({error!r})") from error
    return rankings


def falling_scores(scores: Sequence[float]) -> list[str]:
    """Return scores with six decimals, lowered where they do not fall strictly as 32-bit floats."""
    texts: list[str] = []
    last = math.inf
    for score in scores:
        is_usable = math.isfinite(score) and abs(score) <= _LARGEST
        text = f"{score:.6f}" if is_usable else "0.000000" if math.isinf(last) else _below(last)
        if not _falls(text, last):
            text = _below(last)
        texts.append(text)
        last = float(text)
    return texts


def _below(last: float) -> str:
    step = max(_STEP, float(np.spacing(np.float32(abs(last)))))
    while not _falls(text := f"{last - step:.6f}", last):
        step *= 2
    return text


def _falls(text: str, last: float) -> bool:
    return bool(np.float32(float(text)) < np.float32(last))


def _ordered(scores: dict[str, float]) -> tuple[RankedEntity, ...]:
    names = sorted(scores, key=lambda name: (np.float32(scores[name]), encode_token(name).encode()))
    return tuple(RankedEntity(name, name, scores[name]) for name in reversed(names))


def _score(file: str | Path, line: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        wrong(file, line, "score", "a finite number", text)
    return score


def _finite(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None


IDENTITY_FILE = "evaluation.json"
RUNS_FOLDER = "runs"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """The inputs that all runs of a folder share; an evaluation with others cannot go on with them."""

    index: str  # digest of the index
    model: str  # digest of the checkpoint's files
    dtype: str  # number type of the model
    k: int  # entities asked for
    batch_size: int  # queries answered together, on which times and the samples of `generate` depend
    redirects: str | None  # digest of the file of redirects, or None
    sets: Mapping[str, str]  # name of each set -> digest of its files, with how many of its queries are asked

    def difference(self, other: Identity) -> str | None:
        """Return in words why `other` cannot go on with these runs; None if it can. It may have more sets."""
        for name in ("index", "model", "dtype", "k", "batch_size", "redirects"):
            was, is_now = getattr(self, name), getattr(other, name)
            if was != is_now:
                return f"{name.replace('_', ' ')}: was {was}, is {is_now}"
        for name, digest in other.sets.items():
            if self.sets.get(name, digest) != digest:
                return f"set {name}: was {self.sets[name]}, is {digest}"
        return None


class RunStore:
    """The folder of an evaluation, made if missing; the runs in it count as done.

    A SourceError says that the evaluation that is there has another identity.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder
        file = folder / IDENTITY_FILE
        if file.is_file():
            before = _read_identity(file)
            if difference := before.difference(identity):
                raise SourceError(f"{folder}: holds an evaluation of something else: {difference}")
            identity = Identity(**{**asdict(identity), "sets": {**before.sets, **identity.sets}})
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": _FORMAT, **asdict(identity)}, indent=2, ensure_ascii=False)
        replace_file(file, f"{text}\n".encode())

    def load(self, labelled: LabelledSet, method: str, seed: int | None) -> MethodRun | None:
        """Return a run that is done, or None; SourceError if its files are malformed."""
        file = self._file(labelled.name, method, seed, ".json")
        if not file.is_file():
            return None
        try:
            done = json.loads(file.read_text(encoding="utf-8"))
            seconds, is_constrained = float(done["seconds"]), bool(done["is_constrained"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{file}: not written by this command ({error}); remove it to run again"
            ) from error
        answers = self._file(labelled.name, method, seed, ".jsonl")
        rankings = tuple(read_rankings(answers))
        if [r.query_id for r in rankings] != [q.query_id for q in labelled.queries]:
            raise SourceError(
                f"{answers}: not the queries of the set {labelled.name}; remove it to run again"
            )
        return MethodRun(method, labelled.name, rankings, seconds, seed, is_constrained)

    def save(self, labelled: LabelledSet, run: MethodRun) -> None:
        """Keep a run that is done."""
        file = partial(self._file, labelled.name, run.method, run.seed)
        file(".json").parent.mkdir(parents=True, exist_ok=True)
        write_qrels(file(".json").with_name("qrels.txt"), labelled)
        write_run(file(".run"), labelled, run)
        write_rankings(file(".jsonl"), labelled, run)
        done = {"method": run.method, "set": run.set_name, "seed": run.seed, "seconds": run.seconds}
        done["is_constrained"] = run.is_constrained
        replace_file(file(".json"), f"{json.dumps(done, ensure_ascii=False)}\n".encode())

    def _file(self, set_name: str, method: str, seed: int | None, ending: str) -> Path:
        name = re.sub(r"[^\w.+-]+", "-", method)
        if name != method.replace(":", "-").replace("/", "-") or method.startswith("run:"):
            # Paths of two run files may differ in what was just replaced.
            name = f"{name[:80]}-{xxhash.xxh3_64_hexdigest(method.encode())[:8]}"
        seeded = "" if seed is None else f".seed{seed}"
        return self.folder / RUNS_FOLDER / set_name / f"{name}{seeded}{ending}"


def _read_identity(file: Path) -> Identity:
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            raise ValueError("it has another format")
        return Identity(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{file}: not written by this command ({error})") from error
