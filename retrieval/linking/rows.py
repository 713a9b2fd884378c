"""Rows of the output: one per mention."""

from __future__ import annotations

import pyarrow as pa

CANDIDATE = pa.struct(
    [
        ("entity_id", pa.string()),
        ("title", pa.string()),
        ("logprob", pa.float64()),
        ("score", pa.float64()),
        ("probability", pa.float64()),
    ]
)
SCHEMA = pa.schema(
    [
        ("source", pa.string()),  # input file
        ("row", pa.int64()),  # line or row of it, from 1
        ("doc_id", pa.string()),
        ("mention_id", pa.string()),  # the input's own, or null
        ("start", pa.int64()),  # code points of the document, [start, end)
        ("end", pa.int64()),
        ("start_byte", pa.int64()),  # the same in bytes of its UTF-8 text
        ("end_byte", pa.int64()),
        ("mention", pa.string()),
        ("entity_id", pa.string()),  # null: NIL
        ("title", pa.string()),
        ("surface", pa.string()),  # the surface form that was written
        ("logprob", pa.float64()),
        ("score", pa.float64()),
        ("probability", pa.float64()),
        (
            "nil_reason",
            pa.string(),
        ),  # null, or no_match, abstained, min_logprob, min_probability, no_name, error
        ("candidates", pa.list_(CANDIDATE)),
        ("certified", pa.bool_()),
        ("mass", pa.float64()),
        ("mention_source", pa.string()),  # given, found or generated
        ("method", pa.string()),  # auto, beam, disc, shortlist, or name: no model was needed
        ("error", pa.string()),
        ("index_digest", pa.string()),
    ]
)
NIL_REASONS = ("no_match", "abstained", "min_logprob", "min_probability", "no_name", "error")
