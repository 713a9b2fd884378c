"""An index that is updated while a run goes on: the run ends with the version that it began with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from retrieval.errors import IndexMismatchError
from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.link_options import WorkerOptions
from retrieval.linking.output.folder import LinkingRunError, OutputFolder
from retrieval.linking.run import OutputOptions, link_corpus, plan_corpus_run
from retrieval.linking.run_plan import RunPlan
from retrieval.linking.shard_worker import ShardWorker
from tests.checkpoints import make_checkpoint, make_index


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


class Published(NamedTuple):
    folder: Path
    version: str


def publish(folder: Path, checkpoint: Path, *titles: str) -> Published:
    catalogue = "entity_id\ttitle\n" + "".join(f"{title}\t{title}\n" for title in titles)
    index = make_index(folder, checkpoint, catalogue)
    return Published(index, (index / "CURRENT").read_text().strip())


def plan(folder: Path, index: Path, checkpoint: Path) -> RunPlan:
    docs = folder / "docs.jsonl"
    docs.write_text("".join(json.dumps({"text": f"{i} Nile"}) + "\n" for i in range(3)))
    worker = WorkerOptions(str(index), str(checkpoint), device="cpu")
    corpus = CorpusOptions((str(docs),), shard_documents=1)
    return plan_corpus_run(corpus, OutputOptions(str(folder / "out")), worker)


def test_a_worker_opens_the_version_that_the_run_began_with(tmp_path: Path, checkpoint: Path) -> None:
    first = publish(tmp_path, checkpoint, "Nile", "Amazon")
    planned = plan(tmp_path, first.folder, checkpoint)
    assert publish(tmp_path, checkpoint, "Rhine").version != first.version
    worker = ShardWorker(planned.job)
    try:
        (tmp_path / "out" / "_shards").mkdir(parents=True)
        record = worker.run(planned.corpus.shards[0])
    finally:
        worker.close()
    assert (record.counts.num_mentions, record.counts.num_linked) == (1, 1)


def test_a_version_that_is_gone_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    first = publish(tmp_path, checkpoint, "Nile", "Amazon")
    planned = plan(tmp_path, first.folder, checkpoint)
    publish(tmp_path, checkpoint, "Rhine")
    shutil.rmtree(first.folder / "versions" / first.version)
    with pytest.raises(IndexMismatchError, match=r"was .* when the run began, is now "):
        ShardWorker(planned.job)


def test_a_run_is_finished_with_the_version_that_it_began_with(tmp_path: Path, checkpoint: Path) -> None:
    first = publish(tmp_path, checkpoint, "Nile", "Amazon")
    began = plan(tmp_path, first.folder, checkpoint)
    folder = OutputFolder(tmp_path / "out")
    folder.path.mkdir()
    folder.begin(began.identity)
    second = publish(tmp_path, checkpoint, "Rhine")
    old = first.folder / "versions" / first.version
    with pytest.raises(LinkingRunError) as caught:
        plan(tmp_path, first.folder, checkpoint)
    assert f"the index was {first.version}, is now {second.version}" in str(caught.value)
    assert str(caught.value).endswith(f"--overwrite, or finish it with --index {old}")
    summary = link_corpus(
        began.job.corpus,
        OutputOptions(str(tmp_path / "out")),
        WorkerOptions(str(old), str(checkpoint), device="cpu"),
    )
    assert (summary.counts.num_linked, summary.key) == (3, began.job.key)
    shutil.rmtree(old)
    with pytest.raises(LinkingRunError, match=r"--overwrite$"):
        plan(tmp_path, first.folder, checkpoint)
