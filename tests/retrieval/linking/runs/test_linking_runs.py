"""Runs begin, go on, are refused, and end; nothing is done twice and nothing of others is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from genret.retrieval.errors import IndexMismatchError, InputError, ModelError, SourceError
from genret.retrieval.linking.documents import corpus_reading as reading
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.documents.input_files import Content
from genret.retrieval.linking.documents.parquet_files import ParquetRows
from genret.retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.output.folder import LinkingRunError, OutputFolder
from genret.retrieval.linking.run import OutputOptions, link_corpus, plan_corpus_run
from genret.retrieval.linking.run_plan import RunPlan
from genret.retrieval.linking.run_progress import LinkCounts, LinkDisplay
from genret.retrieval.linking.runners.runner import work
from genret.retrieval.linking.shard_worker import ShardWorker
from tests.checkpoints import make_index
from tests.corpus_shards import store
from tests.index_fixtures import build, character_tokenizer
from tests.linking_fakes import begun, mentions_of, run_words

NUM_DOCUMENTS, PER_SHARD = 22, 4
NUM_SHARDS = 6


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return store(tmp_path, "lines", [f"w{i} w{i}b ?n Xx" for i in range(NUM_DOCUMENTS)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


EXPECTED = [(f"d{i}", word) for i in range(NUM_DOCUMENTS) for word in (f"w{i}", f"w{i}b", "?n", "Xx")]


def snapshot(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_run_writes_every_row_once_in_order(docs: Path, out: Path, index: Path) -> None:
    summary = run_words(docs, out, index)
    assert mentions_of(out) == EXPECTED
    assert summary.counts == LinkCounts(
        num_documents=22, num_mentions=88, num_linked=44, num_nil=44, num_failed=22, num_rows=88
    )
    assert (summary.num_shards, summary.num_resumed, summary.was_complete) == (NUM_SHARDS, 0, False)
    parts = [f"part-{i:06d}.parquet" for i in range(NUM_SHARDS)]
    assert sorted(p.name for p in out.iterdir()) == [".lock", "_run.json", "_shards", "_summary.json", *parts]
    assert sorted(p.name for p in (out / "_shards").iterdir()) == [f"{i:06d}.json" for i in range(NUM_SHARDS)]
    told = json.loads((out / "_summary.json").read_text())
    assert (told["num_rows"], told["num_shards"], sorted(told["parts"])) == (88, NUM_SHARDS, parts)
    assert pq.read_table(out).num_rows == 88  # readers of folders see the parts alone


def test_a_complete_run_does_nothing_when_it_is_started_again(docs: Path, out: Path, index: Path) -> None:
    out.mkdir()  # an empty folder will do
    first = run_words(docs, out, index)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    again = run_words(docs, out, index)
    assert (again.was_complete, again.counts) == (True, first.counts)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"} == before
    assert len(begun(out)) == NUM_SHARDS


PART, RECORD = "part-000002.parquet", "_shards/000002.json"


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:-size])


def change_record(out: Path, **fields: Any) -> None:
    (out / RECORD).write_text(json.dumps({**json.loads((out / RECORD).read_text()), **fields}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no part": lambda out: (out / PART).unlink(),
    "a cut part": lambda out: cut(out / PART, 1),
    "no record": lambda out: (out / RECORD).unlink(),
    "a cut record": lambda out: cut(out / RECORD, 30),
    "an empty record": lambda out: (out / RECORD).write_bytes(b""),
    "a record that is no object": lambda out: (out / RECORD).write_bytes(b"[]"),
    "a record without fields": lambda out: (out / RECORD).write_bytes(b"{}"),
    "a record of other fields": lambda out: change_record(out, counts={"x": 1}),
    "a record of other types": lambda out: change_record(out, shard="2"),
    "a record of another run": lambda out: change_record(out, key="other"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_whole_is_done_again_and_that_alone(
    damage: Any, docs: Path, out: Path, index: Path
) -> None:
    run_words(docs, out, index)
    whole = {name: data for name, data in snapshot(out).items() if name.startswith("part-")}
    damage(out)
    (out / ".part-000002.parquet.host.123.tmp").write_bytes(b"half")
    (out / "part-000077.parquet").write_bytes(b"of nobody")
    summary = run_words(docs, out, index)
    assert (summary.num_resumed, summary.was_complete) == (NUM_SHARDS - 1, False)
    assert [shard for shard, _ in begun(out)][NUM_SHARDS:] == [2]
    assert {name: data for name, data in snapshot(out).items() if name.startswith("part-")} == whole
    assert summary.counts.num_rows == len(EXPECTED)
    assert not list(out.glob(".*.tmp"))


OPTION_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "option": ({"options": LinkOptions(k=7)}, "k was 5, is now 7"),
    "unset": ({"options": LinkOptions(min_mass=0.5, method="disc")}, "min_mass was not given, is now 0.5"),
    "shards": ({"shard_documents": 5}, "shard_documents was 4, is now 5"),
    "format": ({"output_format": "jsonl"}, "the format of the output was parquet, is now jsonl"),
}


def change(what: str, docs: Path, index: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Return what `run_words` is told of a change, which may be one of files, and what a refusal says."""
    if what == "input":
        docs.write_text(docs.read_text().replace("w3", "v3"))
        return {}, "d.jsonl has other contents now"
    if what == "inputs":
        more = store(folder, "texts", ["more"])
        return {"inputs": (docs, more)}, "000.txt was no input and is one now"
    if what == "index":
        other = build(folder, ["title", "Rome"], character_tokenizer("Rome")).index
        versions = [(one / "CURRENT").read_text().strip() for one in (index, other)]
        return {"index": other}, f"the index was {versions[0]}, is now {versions[1]}"
    return OPTION_CHANGES[what]


@pytest.mark.parametrize("what", ["input", "inputs", "index", *OPTION_CHANGES])
def test_another_run_is_refused_with_every_difference(
    what: str, docs: Path, out: Path, index: Path, tmp_path: Path
) -> None:
    run_words(docs, out, index)
    (out / "_summary.json").unlink()
    (out / RECORD).unlink()  # a half-done run
    before = snapshot(out)
    changed, expected = change(what, docs, index, tmp_path)
    run = {"inputs": docs, "out": out, "index": index, **changed}
    with pytest.raises(LinkingRunError) as error:
        run_words(**run)
    assert expected in str(error.value)
    assert "--overwrite" in str(error.value)
    assert snapshot(out) == before
    summary = run_words(**run, overwrite=True)
    assert (summary.num_resumed, summary.counts.num_rows > 80) == (0, True)
    assert {p.suffix for p in out.glob("part-*")} == {"." + changed.get("output_format", "parquet")}


def test_the_index_may_be_elsewhere(docs: Path, out: Path, index: Path, tmp_path: Path) -> None:
    run_words(docs, out, index)
    (out / RECORD).unlink()
    plan = plan_corpus_run(
        CorpusOptions((str(docs),), shard_documents=PER_SHARD),
        OutputOptions(str(out)),
        WorkerOptions(str(shutil.copytree(index, tmp_path / "moved"))),
    )
    assert [shard.number for shard in plan.missing] == [2]


@pytest.mark.parametrize("name", ["mine.txt", "part-x.parquet", "data/part-000000.parquet", "_run.json.bak"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_other_data_is_refused_and_not_touched(
    name: str, overwrite: bool, docs: Path, out: Path, index: Path
) -> None:
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    with pytest.raises(LinkingRunError, match="holds files that no linking run wrote"):
        run_words(docs, out, index, overwrite=overwrite)
    assert [str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()] == [name]


def test_overwriting_deletes_what_a_run_wrote_and_nothing_else(docs: Path, out: Path, index: Path) -> None:
    run_words(docs, out, index)
    (out / "notes.txt").write_text("mine")
    (out / "_shards" / "notes.txt").write_text("mine")
    store(docs.parent, "lines", ["one"])
    run_words(docs, out, index, overwrite=True)
    assert mentions_of(out) == [("d0", "one")]
    assert (out / "notes.txt").read_text() == (out / "_shards" / "notes.txt").read_text() == "mine"


def test_one_file_is_made_of_kept_parts_without_linking_again(
    docs: Path, tmp_path: Path, index: Path
) -> None:
    file = tmp_path / "out.jsonl"
    run_words(docs, file, index, keep_parts=True)
    content = file.read_bytes()
    file.unlink()
    summary = run_words(docs, file, index, keep_parts=True)
    assert (summary.num_resumed, file.read_bytes()) == (NUM_SHARDS, content)
    assert len(begun(Path(f"{file}.parts"))) == NUM_SHARDS
    # As if it had been killed between the last rename and the tidying: that is all that is left to do.
    assert run_words(docs, file, index).was_complete
    assert not Path(f"{file}.parts").exists()
    assert file.read_bytes() == content


def test_bad_documents_end_the_run_unless_allowed(docs: Path, out: Path, index: Path) -> None:
    lines = docs.read_text().splitlines()
    lines[9] = "nonsense"
    lines[15] = "[]"
    docs.write_text("\n".join(lines) + "\n")
    with pytest.raises(SourceError, match=r"d\.jsonl, line 10: .*\(bad document 1, 0 allowed") as error:
        run_words(docs, out, index)
    assert "2 of 6 shards are done and kept" in error.value.__notes__[0]
    with pytest.raises(SourceError, match=r"d\.jsonl, line 16: .*\(bad document 2, 1 allowed"):
        run_words(docs, out, index, max_bad_rows=1)
    summary = run_words(docs, out, index, max_bad_rows=2)
    assert (summary.counts.num_bad_documents, summary.counts.num_documents) == (2, 20)
    left = [row for row in EXPECTED if row[0] not in ("d9", "d15")]
    assert mentions_of(out) == left
    (out / "_summary.json").unlink()
    with pytest.raises(SourceError, match=r"d\.jsonl, line \d+: .*\(bad document 2, 1 allowed"):
        run_words(docs, out, index, max_bad_rows=1)


def test_too_many_failed_mentions_end_the_run(docs: Path, out: Path, index: Path) -> None:
    with pytest.raises(LinkingRunError, match=r"Xx failed \(8 mentions failed, 5 allowed"):
        run_words(docs, out, index, max_failed=5)
    assert run_words(docs, out, index, max_failed=22).counts.num_failed == 22


def test_a_run_that_fails_before_its_first_shard_leaves_nothing(tmp_path: Path, index: Path) -> None:
    docs = store(tmp_path, "lines", ["BREAK"])
    with pytest.raises(ModelError):
        run_words(docs, tmp_path / "out", index)
    assert not (tmp_path / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(ModelError):
        run_words(docs, tmp_path / "there", index)
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(docs: Path, out: Path, index: Path) -> None:
    out.mkdir(mode=0o500)
    with pytest.raises(SourceError, match=r"out.*: cannot be written: Permission denied"):
        run_words(docs, out, index)


def test_files_and_folders_are_not_confused(docs: Path, tmp_path: Path, index: Path) -> None:
    (tmp_path / "out.parquet").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        run_words(docs, tmp_path / "out.parquet", index)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        run_words(docs, tmp_path / "file", index)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "null", "\xff"])
def test_a_damaged_identity_is_refused_and_can_be_overwritten(
    text: str, docs: Path, out: Path, index: Path
) -> None:
    run_words(docs, out, index)
    (out / "_run.json").write_text(text, encoding="latin1")
    with pytest.raises(LinkingRunError, match=r"_run\.json: "):
        run_words(docs, out, index)
    assert run_words(docs, out, index, overwrite=True).num_resumed == 0
    assert mentions_of(out) == EXPECTED


class Published(NamedTuple):
    folder: Path
    version: str


def publish(folder: Path, checkpoint: Path, *titles: str) -> Published:
    catalogue = "entity_id\ttitle\n" + "".join(f"{title}\t{title}\n" for title in titles)
    index = make_index(folder, checkpoint, catalogue)
    return Published(index, (index / "CURRENT").read_text().strip())


def plan(folder: Path, index: Path, checkpoint: Path) -> RunPlan:
    docs = store(folder, "lines", [f"{i} Nile" for i in range(3)])
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


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return store(tmp_path / "in", "lines", [f"w{i} x{i}" for i in range(10)])


@pytest.mark.parametrize(
    ("inputs", "out", "problem"),
    [
        ("in/d.jsonl", "in/d.jsonl", "holds the input"),
        ("in/d.jsonl", "link.jsonl", "holds the input"),
        ("in", "in/linked", "is inside the input folder"),
        ("in", "in/deep/links.parquet", "is inside the input folder"),
        ("linked_folder", "in/linked", "is inside the input folder"),
        ("in", "in", "holds the input"),
        ("out/d.jsonl", "out", "holds the input"),
        ("o.jsonl.parts/d.jsonl", "o.jsonl", "holds the input"),
    ],
)
def test_the_output_is_no_input(
    inputs: str, out: str, problem: str, ten: Path, tmp_path: Path, index: Path
) -> None:
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "linked_folder").symlink_to(tmp_path / "in")
    (tmp_path / "link.jsonl").symlink_to(ten)
    for name in ("out", "o.jsonl.parts"):
        (tmp_path / name).mkdir()
        shutil.copy(ten, tmp_path / name)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
    with pytest.raises(InputError, match=f"^out: .*{problem}"):
        run_words(tmp_path / inputs, tmp_path / out, index, overwrite=True)
    with pytest.raises(InputError, match=problem):
        plan_corpus_run(
            CorpusOptions((str(tmp_path / inputs),)),
            OutputOptions(str(tmp_path / out), overwrite=True),
            WorkerOptions(str(index)),
        )
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")} == before


def test_an_output_beside_the_inputs_is_none_of_them(ten: Path, tmp_path: Path, index: Path) -> None:
    assert run_words(ten, ten.parent / "linked", index).counts.num_rows == 20
    assert run_words(ten, ten.parent / "docs.links.jsonl", index).counts.num_rows == 20
    assert run_words(ten.parent / "d.jsonl", tmp_path / "in.out", index).counts.num_rows == 20


def test_a_part_that_was_changed_is_not_merged(ten: Path, tmp_path: Path, index: Path) -> None:
    """The other part has the same size, so that it looks finished."""
    out = tmp_path / "o.jsonl"
    expected = run_words(ten, out, index, keep_parts=True)
    whole = out.read_bytes()
    part = tmp_path / "o.jsonl.parts" / "part-000001.jsonl"
    part.write_bytes(part.read_bytes().replace(b'"w5"', b'"w6"'))
    out.unlink()
    with pytest.raises(SourceError, match=r"part-000001.* has been changed since it was written.*delete it"):
        run_words(ten, out, index, keep_parts=True)
    assert not out.exists()
    part.unlink()
    again = run_words(ten, out, index)
    assert (again.num_resumed, again.num_shards) == (expected.num_shards - 1, expected.num_shards)
    assert out.read_bytes() == whole


def test_a_record_that_cannot_be_read_is_named(ten: Path, tmp_path: Path, index: Path) -> None:
    out = tmp_path / "out"
    run_words(ten, out, index)
    record = out / "_shards" / "000001.json"
    record.unlink()
    record.mkdir()
    with pytest.raises(LinkingRunError, match=r"000001\.json: cannot be read: Is a directory"):
        run_words(ten, out, index)


def test_a_folder_that_disappears_is_an_error_that_names_it(ten: Path, tmp_path: Path, index: Path) -> None:
    out = tmp_path / "out"

    class Removing(LinkDisplay):
        """Removes the folder when the first shard is done."""

        def show(self, progress: Any) -> None:
            if progress.done_shards == 1:
                shutil.rmtree(out, ignore_errors=True)

    with pytest.raises(SourceError, match=r"out.*: cannot be written: No such file or directory"):
        run_words(ten, out, index, display=Removing())
    assert not out.exists()
    assert run_words(ten, out, index).counts.num_rows == 20
    assert [shard for shard, _ in begun(out)] == [0, 1, 0, 1, 2]


def finished_but_for_the_parts(ten: Path, tmp_path: Path, index: Path) -> tuple[Path, Path]:
    """Return a whole file and the folder of its run, which was killed as it removed the parts."""
    out = tmp_path / "o.jsonl"
    run_words(ten, out, index, keep_parts=True)
    parts = tmp_path / "o.jsonl.parts"
    shutil.rmtree(parts / "_shards")
    for part in parts.glob("part-*"):
        part.unlink()
    return out, parts


def test_a_file_whose_parts_were_half_removed_is_complete(ten: Path, tmp_path: Path, index: Path) -> None:
    out, parts = finished_but_for_the_parts(ten, tmp_path, index)
    before = out.read_bytes()
    summary = run_words(ten, out, index)
    assert (summary.was_complete, summary.counts.num_mentions, summary.counts.num_rows) == (True, 20, 20)
    assert out.read_bytes() == before
    assert not parts.exists()


@pytest.mark.parametrize("what_stays", ["_run.json _summary.json", "_summary.json"])
def test_the_file_of_another_run_is_not_replaced(
    what_stays: str, ten: Path, tmp_path: Path, index: Path
) -> None:
    out, parts = finished_but_for_the_parts(ten, tmp_path, index)
    for name in {"_run.json", "_summary.json"} - set(what_stays.split()):
        (parts / name).unlink()
    before = out.read_bytes()
    with pytest.raises(InputError if what_stays == "_summary.json" else LinkingRunError):
        run_words(ten, out, index, shard_documents=3)
    assert out.read_bytes() == before


def test_totals_that_are_no_numbers_are_named(ten: Path, tmp_path: Path, index: Path) -> None:
    _, parts = finished_but_for_the_parts(ten, tmp_path, index)
    summary = json.loads((parts / "_summary.json").read_text())
    (parts / "_summary.json").write_text(json.dumps({**summary, "num_rows": "many"}))
    with pytest.raises(LinkingRunError, match=r"_summary\.json: cannot be read: expected integers, got"):
        run_words(ten, tmp_path / "o.jsonl", index)


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_a_link_that_leads_nowhere_is_refused(name: str, ten: Path, tmp_path: Path, index: Path) -> None:
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(InputError, match=r"is a link to nowhere, which is not there"):
        run_words(ten, tmp_path / name, index)
    (tmp_path / "nowhere").mkdir()
    if name == "out":
        assert run_words(ten, tmp_path / name, index).counts.num_rows == 20
        assert (tmp_path / "nowhere" / "_summary.json").exists()


@pytest.mark.parametrize(("kind", "workers"), [("gzip", 2), ("parquet", 3), ("folder", 2)])
def test_several_workers_write_what_one_does(kind: str, workers: int, tmp_path: Path, index: Path) -> None:
    texts = [f"w{i} again\u2003é🦁 ?n" for i in range(40)]
    docs = store(tmp_path, kind, texts)
    run_words(docs, tmp_path / "one", index, shard_documents=3)
    summary = run_words(docs, tmp_path / "more", index, workers=workers, shard_documents=3)
    assert len({pid for _, pid in begun(tmp_path / "more")}) <= workers
    assert summary.counts.num_documents == len(texts)
    assert mentions_of(tmp_path / "more") == [
        (f"d{i}", word) for i, t in enumerate(texts) for word in t.split()
    ]
    parts = [sorted((tmp_path / out).glob("part-*")) for out in ("one", "more")]
    assert [part.read_bytes() for part in parts[0]] == [part.read_bytes() for part in parts[1]]


JOB = LinkJob(CorpusOptions(("docs",)), LinkOptions(), WorkerOptions("index", num_threads=None), "out")


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError], ids=lambda e: e.__name__)
def test_a_worker_without_a_coordinator_ends(error: type[Exception]) -> None:
    pipe, open_worker = Mock(), Mock()
    pipe.recv.side_effect = error()
    pipe.send.side_effect = [None, BrokenPipeError(32, "Broken pipe")]  # None: that everything is open
    work(pipe, JOB, open_worker)
    open_worker.assert_called_once_with(JOB)
    open_worker.return_value.close.assert_called_once_with()


TEXTS = [f"w{i} again" for i in range(20)]


@pytest.mark.parametrize(("kind", "opener"), [("gzip", Content), ("parquet", ParquetRows)])
def test_the_next_shard_goes_on_in_the_open_file(
    kind: str, opener: type, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    closed: list[Any] = []

    class Counted(opener):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            opened.append(self)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(reading, opener.__name__, Counted)
    summary = run_words(store(tmp_path, kind, TEXTS), tmp_path / "out", index, shard_documents=3)
    assert summary.num_shards == 7
    assert summary.counts.num_rows == 2 * len(TEXTS)
    assert len(opened) == 2  # to look at the file before the run, and for all of its shards
    assert closed == opened
