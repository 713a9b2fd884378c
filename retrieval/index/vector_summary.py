"""What there is to say about the vectors of a version, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from retrieval.index.manifest import Manifest


def vector_facts(manifest: Manifest) -> dict[str, Any] | None:
    """Return what the manifest says of the vectors, and sizes: in all, and those of the vectors per title.

    The embedder counts in `bytes` alone: it is as large for ten titles as for ten million.
    """
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
