"""Opening the evidence of an index: what is damaged or missing costs that evidence alone."""

from __future__ import annotations

import logging
from pathlib import Path

from retrieval.errors import GenretError, IndexFormatError
from retrieval.evidence.evidence import NAMES, QUERIES, TEXTS, VECTORS, Evidence
from retrieval.evidence.field import Field
from retrieval.evidence.terms import TERMS_VERSION
from retrieval.index.layout import NAMES_FILE, QUERIES_FILE, TEXTS_FILE
from retrieval.index.reader import Index
from retrieval.vectors.shortlister import Shortlister

_LOG = logging.getLogger(__name__)
FIELD_FILES = {NAMES: NAMES_FILE, TEXTS: TEXTS_FILE, QUERIES: QUERIES_FILE}


def open_evidence(index: Index, encoder: str | Path | None = None, device: str = "cpu") -> Evidence:
    """Open the evidence of an index. Evidence that cannot be used is no error: `Evidence.problems` names it.

    Args:
        index: An open index.
        encoder: Where the encoder that made its vectors lies now; None: where it lay then.
        device: Where an encoder runs.
    """
    problems: dict[str, GenretError] = {}
    fields: dict[str, Field] = {}
    for kind, file in FIELD_FILES.items():
        if index.manifest.file(file) is None:
            continue
        try:
            fields[kind] = open_field(index, kind)
        except GenretError as error:
            problems[kind] = error.with_traceback(None)
    vectors = None
    if index.vectors is not None:
        try:
            vectors = Shortlister.open(index, encoder, device)
        except GenretError as error:
            problems[VECTORS] = error.with_traceback(None)
    for kind, problem in problems.items():
        _LOG.warning("the %s of %s cannot be used as evidence: %s", kind, index.path, problem)
    return Evidence(
        index, fields.get(NAMES), fields.get(TEXTS), fields.get(QUERIES), vectors=vectors, problems=problems
    )


def open_field(index: Index, kind: str) -> Field:
    """Open one field.

    Raises:
        IndexChecksumError: its file differs from the manifest.
        IndexFormatError: it is none of such a field, or was made by other rules.
        EvidenceMissingError: the index has no such field.
    """
    file = FIELD_FILES[kind]
    if index.evidence is not None and index.evidence.terms != TERMS_VERSION:
        raise IndexFormatError(
            f"{file}: made by version {index.evidence.terms} of the rules for words and letters, this "
            f"library has version {TERMS_VERSION}; make it anew with: genret update INDEX --evidence all"
        )
    return Field.read(
        index.evidence_file(file),
        file,
        index.num_entities,
        has_queries=kind == QUERIES,
        weights=index.weights if kind == NAMES else None,
    )
