"""Where a run writes: never over its inputs, never among them, and not into what somebody has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.link_options import WorkerOptions
from genret.retrieval.linking.output.folder import LinkingRunError, OutputFolder
from genret.retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus, plan_corpus_run
from tests.linking_fakes import LoggingWorker, begun, run_words


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "docs.jsonl"
    file.write_text("".join(json.dumps({"text": f"w{i} x{i}"}) + "\n" for i in range(10)))
    return file


@pytest.mark.parametrize(
    ("inputs", "out", "problem"),
    [
        ("in/docs.jsonl", "in/docs.jsonl", "holds the input"),
        ("in/docs.jsonl", "link.jsonl", "holds the input"),
        ("in", "in/linked", "is inside the input folder"),
        ("in", "in/deep/links.parquet", "is inside the input folder"),
        ("linked_folder", "in/linked", "is inside the input folder"),
        ("in", "in", "holds the input"),
        ("out/docs.jsonl", "out", "holds the input"),
        ("o.jsonl.parts/docs.jsonl", "o.jsonl", "holds the input"),
    ],
)
def test_the_output_is_no_input(
    inputs: str, out: str, problem: str, docs: Path, tmp_path: Path, index: Path
) -> None:
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "linked_folder").symlink_to(tmp_path / "in")
    (tmp_path / "link.jsonl").symlink_to(docs)
    for name in ("out", "o.jsonl.parts"):
        (tmp_path / name).mkdir()
        shutil.copy(docs, tmp_path / name)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
    with pytest.raises(InputError) as caught:
        run_words(tmp_path / inputs, tmp_path / out, index, overwrite=True)
    assert caught.value.field == "out"
    assert problem in str(caught.value)
    with pytest.raises(InputError, match=problem):
        plan_corpus_run(
            CorpusOptions((str(tmp_path / inputs),)),
            OutputOptions(str(tmp_path / out), overwrite=True),
            WorkerOptions(str(index)),
        )
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")} == before


def test_an_output_beside_the_inputs_is_none_of_them(docs: Path, tmp_path: Path, index: Path) -> None:
    assert run_words(docs, docs.parent / "linked", index).counts.num_rows == 20
    assert run_words(docs, docs.parent / "docs.links.jsonl", index).counts.num_rows == 20
    assert run_words(docs.parent / "docs.jsonl", tmp_path / "in.out", index).counts.num_rows == 20


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_part_that_was_changed_is_not_merged(
    suffix: str, docs: Path, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size, so that it looks finished; a page checksum would not tell another whole file."""
    out = tmp_path / f"o.{suffix}"
    expected = run_words(docs, out, index, keep_parts=True)
    whole = out.read_bytes()
    part = tmp_path / f"o.{suffix}.parts" / f"part-000001.{suffix}"
    if suffix == "jsonl":
        part.write_bytes(part.read_bytes().replace(b'"w5"', b'"w6"'))
    else:
        table = pq.read_table(part)
        size = part.stat().st_size
        pq.write_table(table.slice(0, 1), part)
        assert part.stat().st_size <= size
        part.write_bytes(part.read_bytes()[:-8] + bytes(size - part.stat().st_size) + part.read_bytes()[-8:])
    out.unlink()
    with pytest.raises(SourceError, match=r"part-000001.* has been changed since it was written.*delete it"):
        run_words(docs, out, index, keep_parts=True)
    assert not out.exists()
    part.unlink()
    again = run_words(docs, out, index)
    assert (again.num_resumed, again.num_shards) == (expected.num_shards - 1, expected.num_shards)
    assert out.read_bytes() == whole


def test_a_record_that_cannot_be_read_is_named(docs: Path, tmp_path: Path, index: Path) -> None:
    out = tmp_path / "out"
    run_words(docs, out, index)
    record = out / "_shards" / "000001.json"
    record.unlink()
    record.mkdir()
    with pytest.raises(LinkingRunError, match=r"000001\.json: cannot be read: Is a directory"):
        run_words(docs, out, index)


def test_a_folder_that_disappears_is_an_error_that_names_it(docs: Path, tmp_path: Path, index: Path) -> None:
    out = tmp_path / "out"

    class Removing:
        """Removes the folder when the first shard is done."""

        def planning(self, num_bytes: int) -> None: ...

        def warn(self, text: str) -> None: ...

        def show(self, progress: Any) -> None:
            if progress.done_shards == 1:
                shutil.rmtree(out, ignore_errors=True)

    with pytest.raises(SourceError, match=r"out.*: cannot be written: No such file or directory"):
        link_corpus(
            CorpusOptions((str(docs),), shard_documents=4),
            OutputOptions(str(out)),
            WorkerOptions(str(index)),
            runner=RunnerOptions(num_workers=1, open_worker=LoggingWorker),
            display=Removing(),
        )
    assert not out.exists()
    assert run_words(docs, out, index).counts.num_rows == 20
    assert [shard for shard, _ in begun(out)] == [0, 1, 0, 1, 2]


def test_a_folder_that_is_gone_is_no_trouble_in_the_end(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out")
    folder.lock()
    shutil.rmtree(folder.path)
    folder.remove_if_unused()
    folder.release()
    assert not folder.path.exists()


def finished_but_for_the_parts(docs: Path, tmp_path: Path, index: Path) -> tuple[Path, Path]:
    """Return a whole file and the folder of its run, which was killed as it removed the parts."""
    out = tmp_path / "o.jsonl"
    run_words(docs, out, index, keep_parts=True)
    parts = tmp_path / "o.jsonl.parts"
    shutil.rmtree(parts / "_shards")
    for part in parts.glob("part-*"):
        part.unlink()
    return out, parts


def test_a_file_whose_parts_were_half_removed_is_complete(docs: Path, tmp_path: Path, index: Path) -> None:
    out, parts = finished_but_for_the_parts(docs, tmp_path, index)
    before = out.read_bytes()
    summary = run_words(docs, out, index)
    assert (summary.was_complete, summary.counts.num_mentions, summary.counts.num_rows) == (True, 20, 20)
    assert out.read_bytes() == before
    assert not parts.exists()


@pytest.mark.parametrize("what_stays", ["_run.json _summary.json", "_summary.json"])
def test_the_file_of_another_run_is_not_replaced(
    what_stays: str, docs: Path, tmp_path: Path, index: Path
) -> None:
    out, parts = finished_but_for_the_parts(docs, tmp_path, index)
    for name in {"_run.json", "_summary.json"} - set(what_stays.split()):
        (parts / name).unlink()
    before = out.read_bytes()
    with pytest.raises(InputError if what_stays == "_summary.json" else LinkingRunError):
        run_words(docs, out, index, shard_documents=3)
    assert out.read_bytes() == before


def test_totals_that_are_no_numbers_are_named(docs: Path, tmp_path: Path, index: Path) -> None:
    _, parts = finished_but_for_the_parts(docs, tmp_path, index)
    summary = json.loads((parts / "_summary.json").read_text())
    (parts / "_summary.json").write_text(json.dumps({**summary, "num_rows": "many"}))
    with pytest.raises(LinkingRunError, match=r"_summary\.json: cannot be read: expected integers, got"):
        run_words(docs, tmp_path / "o.jsonl", index)


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_a_link_that_leads_nowhere_is_refused(name: str, docs: Path, tmp_path: Path, index: Path) -> None:
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(InputError, match=r"is a link to nowhere, which is not there"):
        run_words(docs, tmp_path / name, index)
    (tmp_path / "nowhere").mkdir()
    if name == "out":
        assert run_words(docs, tmp_path / name, index).counts.num_rows == 20
        assert (tmp_path / "nowhere" / "_summary.json").exists()
