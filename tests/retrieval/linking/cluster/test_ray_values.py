"""What crosses between a run and its actors: shards, outcomes and the job arrive as they were sent."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.linking.documents.corpus import Shard, ShardFile
from retrieval.linking.output.folder import ShardRecord
from retrieval.linking.run_progress import LinkCounts
from retrieval.linking.runners.ray_actor import Outcome, outcome_of, shard_of, text_of_outcome, text_of_shard
from retrieval.linking.runners.runner import WorkerError
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


@settings(deadline=None)  # a busy machine
@given(SHARDS)
def test_shards_arrive_as_they_were_sent(shard: Shard) -> None:
    assert shard_of(through_a_block(text_of_shard(shard))) == shard


@settings(deadline=None)  # a busy machine
@given(RECORDS | FAILURES)
def test_outcomes_arrive_as_they_were_sent(outcome: Outcome) -> None:
    back = outcome_of(through_a_block(text_of_outcome(outcome)))
    assert (type(back), back) == (type(outcome), outcome)


def through_a_block(text: str) -> str:
    """Return a text as it comes out of a block of Ray Data."""
    (back,) = pa.table({"column": np.array([text], dtype=object)})["column"].to_numpy()
    return str(back)


@pytest.mark.parametrize("value", [None, [], {}, {"files": 1}, {"files": [], "numbers": 3}, {"files": [{}]}])
def test_what_is_no_shard_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a (shard|stretch of a file): "):
        Shard.from_json(value)


@pytest.mark.parametrize("value", [None, {}, {"text": "t", "kinds": "k"}])
def test_what_is_no_failure_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not the failure of a worker: "):
        WorkerError.from_json(value)


def test_ray_data_can_tell_jobs_apart(tmp_path: Path) -> None:
    a_job(tmp_path)
    arguments = (job_of(tmp_path), FakeShardWorker)
    assert hash(arguments) == hash((job_of(tmp_path), FakeShardWorker))  # it keeps actors by their arguments
