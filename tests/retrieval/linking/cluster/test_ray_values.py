"""Shards, outcomes and the job arrive at and from actors as they were sent."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.linking.documents.corpus import Shard, ShardFile
from genret.retrieval.linking.output.folder import ShardRecord
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.linking.runners.ray_actor import outcome_of, shard_of, text_of
from genret.retrieval.linking.runners.runner import WorkerError
from tests.retrieval.linking.cluster.fake_shard_worker import FakeShardWorker, a_job, job_of

TEXTS = st.text() | st.binary().map(lambda name: name.decode("utf-8", "surrogateescape"))
NUMBERS = st.integers(min_value=-1, max_value=2**70)
FILES = st.builds(
    ShardFile,
    TEXTS,
    TEXTS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.none() | st.tuples(NUMBERS, NUMBERS),
    NUMBERS,
    TEXTS,
)
SHARDS = st.builds(Shard, NUMBERS, st.lists(FILES, max_size=3).map(tuple), NUMBERS, TEXTS)
COUNTS = st.lists(NUMBERS, min_size=len(fields(LinkCounts)), max_size=len(fields(LinkCounts))).map(
    lambda numbers: LinkCounts(*numbers)
)
RECORDS = st.builds(
    ShardRecord,
    shard=NUMBERS,
    key=TEXTS,
    digest=TEXTS,
    part=TEXTS,
    num_bytes=NUMBERS,
    counts=COUNTS,
    complaints=st.lists(TEXTS, max_size=3).map(tuple),
    seconds=st.floats(allow_nan=False),
    part_digest=TEXTS,
    first_bad=TEXTS,
)
FAILURES = st.builds(WorkerError, st.none() | TEXTS, TEXTS, TEXTS)


@given(SHARDS | RECORDS | FAILURES)
def test_values_arrive_as_they_were_sent(sent: Shard | ShardRecord | WorkerError) -> None:
    (text,) = pa.table({"column": np.array([text_of(sent)], dtype=object)})["column"].to_numpy()
    back = shard_of(text) if isinstance(sent, Shard) else outcome_of(text)
    assert (type(back), back) == (type(sent), sent)


@given(RECORDS)
def test_records_are_read_as_they_were_written(record: ShardRecord) -> None:
    assert ShardRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_ray_data_can_tell_jobs_apart(tmp_path: Path) -> None:
    a_job(tmp_path)
    arguments = (job_of(tmp_path), FakeShardWorker)
    assert hash(arguments) == hash((job_of(tmp_path), FakeShardWorker))  # it keeps actors by their arguments
