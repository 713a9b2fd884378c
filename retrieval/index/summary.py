"""Describes a version in few lines, for people and as JSON: its evidence, its rankings, its row lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from genret.retrieval.errors import IndexDirectoryError
from genret.retrieval.index.layout import EMBEDDER_FILE, FIELD_FILES, PRIOR_FILE, RANKING_FILE, VECTORS_FILE
from genret.retrieval.index.manifest import OLD_VECTOR_METHODS, Manifest
from genret.retrieval.index.priors import read_priors
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import parse_json


def evidence_facts(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest's facts about names, texts and past queries, and about vectors, with sizes."""
    return {"evidence": _field_facts(manifest), "vectors": vector_facts(manifest)}


def evidence_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return a few lines of text for `evidence_facts`, each after a heading."""
    lines = []
    if (fields := facts["evidence"]) is not None:
        lines += [f"evidence    {line}" for line in _field_lines(fields)]
    if facts["vectors"] is not None:
        lines += [f"vectors     {line}" for line in vector_lines(facts["vectors"])]
    return _once(lines)


def _once(lines: list[str]) -> list[str]:
    """Leave out a heading that the line before has."""
    told = list(lines)
    for at in range(len(lines) - 1, 0, -1):
        if lines[at][:12] == lines[at - 1][:12]:
            told[at] = " " * 12 + lines[at][12:]
    return told


def evidence_kinds(manifest: Manifest) -> tuple[str, ...]:
    """Return the kinds of evidence there are; rankings hold for a version with the same."""
    kinds = []
    if (evidence := manifest.evidence) is not None:
        kinds = [f"names:{evidence.terms}"]
        kinds += [f"texts:{','.join(evidence.columns)}"] if evidence.columns else []
        kinds += ["queries"] if evidence.queries else []
    if manifest.vectors is not None:
        kinds.append(f"vectors:{manifest.vectors.fingerprint}:{','.join(manifest.vectors.columns)}")
    return (*kinds, *(["weight"] if manifest.weight_column is not None else []))


def unusable_vectors(manifest: Manifest) -> str | None:
    """Return why the vectors can be used by no process of this version of the library; None if they can."""
    if manifest.vectors is None or manifest.vectors.method not in OLD_VECTOR_METHODS:
        return None
    return (
        f"made by {manifest.vectors.method}, which this version no longer has; "
        "make new ones with: genret update INDEX --vectors METHOD"
    )


def ranking_facts(index: Index) -> list[dict[str, Any]] | None:
    """Return the rankings of an index, that without a model first: fingerprint, provenance, weights by kind.

    None where there are none; [{"problem": …}] where they cannot be read.
    """
    if index.manifest.file(RANKING_FILE) is None:
        return None
    try:
        rankings = parse_json(index.evidence_path(RANKING_FILE).read_bytes(), RANKING_FILE)["rankings"]
        return [
            {
                "model": model,
                "provenance": _told(ranking["provenance"] or {}),
                "weights": _by_kind(ranking["weights"]),
            }
            for model, ranking in sorted(rankings.items())
        ]
    except (IndexDirectoryError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        return [{"problem": str(error)}]


def _told(provenance: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {"num_queries": int(provenance.get("num_queries", 0))}
    metrics = {name: float(value) for name, value in (provenance.get("metrics") or {}).items()}
    return {**provenance, **numbers, "metrics": metrics}


def prior_facts(index: Index) -> list[dict[str, Any]] | None:
    """Return the priors of an index: fingerprint, queries, how many entities have none yet.

    None where there are none; [{"problem": …}] where they cannot be read.
    """
    if index.manifest.file(PRIOR_FILE) is None:
        return None
    try:
        return [
            {"model": model, "queries": list(prior.queries), "missing": prior.num_missing}
            for model, prior in read_priors(index).items()
        ]
    except IndexDirectoryError as error:
        return [{"problem": str(error)}]


def prior_lines(priors: list[dict[str, Any]]) -> list[str]:
    """Return a line of text for each of `prior_facts`."""
    lines = []
    for prior in priors:
        if "problem" in prior:
            return [f"DAMAGED: {prior['problem']}"]
        queries = ", ".join(map(repr, prior["queries"]))
        lines.append(f"of the model {prior['model']}, behind {queries}")
        if prior["missing"]:
            lines.append(
                f"  {prior['missing']:,} entities have none yet and count as the mean: genret tune INDEX "
                "--model MODEL --prior"
            )
    return lines


def _by_kind(weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for feature, weight in weights.items():
        kind, _, name = feature.partition(".")
        kinds.setdefault(kind, {})[name] = round(float(weight), 3)
    return kinds


def ranking_lines(rankings: list[dict[str, Any]]) -> list[str]:
    """Return a few lines of text for `ranking_facts`."""
    lines = []
    for ranking in rankings:
        if "problem" in ranking:
            return [f"DAMAGED: {ranking['problem']}"]
        told = ranking["provenance"]
        model = f"with the model {ranking['model']}" if ranking["model"] else "without a model"
        lines.append(f"{model}: {told.get('num_queries', 0):,} queries, {told.get('queries', 'unknown')}")
        if told.get("metrics"):
            lines.append("  " + ", ".join(f"{name} {value:.3f}" for name, value in told["metrics"].items()))
        for kind, weights in ranking["weights"].items():
            lines.append(f"  {kind}: " + ", ".join(f"{name} {value:g}" for name, value in weights.items()))
    return lines


def _field_facts(manifest: Manifest) -> dict[str, Any] | None:
    entry = manifest.evidence
    if entry is None:
        return None
    entities = max(manifest.counts.entities, 1)
    kinds = {}
    for kind, name in FIELD_FILES.items():
        if (file := manifest.file(name)) is not None:
            size = round(file.bytes / entities, 2)
            kinds[kind] = {"count": getattr(entry, kind), "bytes": file.bytes, "bytes_per_title": size}
    return {"columns": list(entry.columns), "kinds": kinds}


def _field_lines(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for kind, told in facts["kinds"].items():
        of = f" of {', '.join(facts['columns'])}" if kind == "texts" else ""
        noun = {"names": "names", "texts": f"entities with texts{of}", "queries": "past queries"}[kind]
        lines.append(
            f"{told['count']:,} {noun}: {told['bytes']:,} bytes, {told['bytes_per_title']:,.1f} per title"
        )
    return lines


def vector_facts(manifest: Manifest) -> dict[str, Any] | None:
    """Return the manifest's facts about the vectors, and sizes: in all, and of the vectors per title."""
    entry = manifest.vectors
    if entry is None:
        return None
    vectors, embedder = (manifest.file(name) for name in (VECTORS_FILE, EMBEDDER_FILE))
    entities = max(manifest.counts.entities, 1)
    stored = 0 if vectors is None else vectors.bytes
    return {
        **asdict(entry),
        "columns": list(entry.columns),
        "texts_per_entity": round(entry.count / entities, 3),
        "bytes": stored + (0 if embedder is None else embedder.bytes),
        "bytes_per_title": round(stored / entities, 2),
    }


def vector_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return a few lines of text for `vector_facts`."""
    source = f" {facts['source']}" if facts["source"] else ""
    columns = f", also of {', '.join(facts['columns'])}" if facts["columns"] else ""
    lines = [
        f"{facts['method']}{source}, {facts['dimensions']:,} dimensions: {_texts(facts['count'])}, "
        f"{facts['texts_per_entity']:.2f} per entity{columns}",
        f"{facts['kind']} ({facts['factory']}): {facts['bytes']:,} bytes, "
        f"{facts['bytes_per_title']:,.1f} of vectors per title",
    ]
    trained = f"trained on {_texts(facts['sample'])}; " if facts["sample"] else "nothing trained; "
    effort = f"effort {facts['effort']:,}" if facts["effort"] else "everything is looked at"
    measured = "recall was not measured"
    if facts["recall_queries"]:
        measured = (
            f"keeps {facts['recall']:.1%} of what full effort finds ({_texts(facts['recall_queries'])} asked)"
        )
    return [*lines, f"{trained}{effort}; {measured}"]


def _texts(count: int) -> str:
    return f"{count:,} text{'' if count == 1 else 's'}"


MAX_LINES = 40


def length_lines(lengths: Mapping[int, int], bar: str, width: int) -> list[str]:
    """Return one line per row length, or per range of lengths where there would be more than 40 lines.

    `lengths` has the number of rows by length, ascending, at least one; the longest bar has `width`
    characters.
    """
    step = 1 if len(lengths) <= MAX_LINES else -(-max(lengths) // MAX_LINES)
    counts: dict[int, int] = {}
    for length, count in lengths.items():
        begin = (length - 1) // step * step + 1
        counts[begin] = counts.get(begin, 0) + count
    most = max(counts.values())
    return [
        f"{begin if step == 1 else f'{begin}–{begin + step - 1}':>9} {count:>12,} "
        + bar * max(round(width * count / most), 1)
        for begin, count in counts.items()
    ]
