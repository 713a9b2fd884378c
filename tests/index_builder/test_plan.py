"""A dry run says what the real build then does."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.index_builder import build_plan as plan_module
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, EvidenceOptions
from genret.index_builder.build_plan import plan_build
from genret.index_builder.cli import build_command
from genret.retrieval.errors import IndexDirectoryError, SourceError
from genret.retrieval.index.layout import EVIDENCE_FILES, RANKING_FILE, ROWS_DIR
from tests.commands import json_of, refusal, run, succeed
from tests.index_fixtures import character_tokenizer, fault, save_tokenizer, write_titles
from tests.ranking_fixtures import write_rankings

ABC = character_tokenizer("abcdefgh A")
WORDS = st.text("abcA", min_size=1, max_size=5)
OF_ENTITIES = ("entities", "rows", "tokens", "nodes")


@settings(max_examples=30)
@given(
    st.lists(st.tuples(WORDS, WORDS, st.sampled_from(["", "1", "x"])), min_size=1, max_size=20),
    st.integers(1, 30),
)
def test_the_figures_are_those_of_the_build(entries: list[tuple[str, str, str]], shard_records: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = ["title\taliases\tkind", *("\t".join(entry) for entry in entries)]
        source = write_titles(Path(folder) / "titles.tsv", lines)
        options = BuildOptions(
            out=Path(folder) / "it.index",
            max_title_tokens=5,
            max_bad_rows=20,
            rejects=Path(folder) / "bad.tsv",
            shard_records=shard_records,
        )
        plan = plan_build(source, ABC, replace(options, rejects=None))
        assert [p.name for p in Path(folder).iterdir()] == ["titles.tsv"]
        if not plan.entities:
            return
        summary = build_index(source, ABC, options)
    counts, history = summary.manifest.counts, summary.manifest.history[-1]
    assert (plan.entities, plan.rows) == (counts.entities, counts.rows)
    assert (plan.records, plan.duplicates) == (history.records, history.duplicates)
    assert plan.rejected == summary.rejected
    assert plan.lengths == {bucket.length: bucket.rows for bucket in summary.manifest.buckets}
    assert plan.columns == summary.manifest.metadata
    stored = [file.bytes for file in summary.manifest.files if file.name not in EVIDENCE_FILES]
    assert plan.num_bytes == sum(stored)
    assert plan.evidence.names >= summary.manifest.evidence.names >= plan.entities
    assert plan.sample_share == 1
    over_long = [
        (len(form) + 1, number)
        for number, (title, alias, _) in enumerate(entries, start=2)
        for form in (title, alias)
        if len(form) + 1 > 5
    ]
    assert (plan.longest is not None) == bool(over_long)
    if plan.longest is not None:
        assert plan.longest.tokens == max(tokens for tokens, _ in over_long)


def test_sizes_of_a_large_catalogue_are_estimated_from_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "_SAMPLE_FORMS", 1600)
    titles = [f"{a}{b}{c}{d}" for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh" for d in "abcdefgh"]
    source = write_titles(tmp_path / "titles.tsv", ["title\tkind", *(f"{t}\t{t[:2]}" for t in titles)])
    evidence = EvidenceOptions(ranking=write_rankings(tmp_path))
    options = BuildOptions(out=tmp_path / "it.index", shard_records=1000, evidence=evidence)
    plan = plan_build(source, ABC, options)
    summary = build_index(source, ABC, options)
    assert 0.1 < plan.sample_share < 0.9
    assert (plan.entities, plan.rows) == (4096, 4096)
    sizes = {"rows": 0, "trie": 0, "entities": 0, "postings": 0, "title_order": 0}
    evidence = 0
    for file in summary.manifest.files:
        if file.name in EVIDENCE_FILES:
            evidence += 0 if file.name == RANKING_FILE else file.bytes
            continue
        sizes[file.name.removesuffix(".arrow") if ROWS_DIR not in file.name else "rows"] += file.bytes
    for part, size in sizes.items():
        assert plan.bytes[part] == pytest.approx(size, rel=0.3)
    assert plan.evidence.bytes == pytest.approx(evidence, rel=0.5)


@pytest.mark.parametrize(("order", "kind"), [("sorted", "parquet"), ("mixed", "tsv")])
def test_a_sample_of_the_rows_tells_about_all(tmp_path: Path, order: str, kind: str) -> None:
    """Titles of 4 to 12 letters, some of them long, some repeated: 2,000 rows tell all within a tenth."""
    random = Random(7)
    letters = [random.choices("abcdefgh", range(1, 9), k=random.randint(4, 12)) for _ in range(8_000)]
    titles = sorted({f"{''.join(some[:3])} {''.join(some[3:])}" for some in letters})
    if order == "mixed":
        random.shuffle(titles)
    titles = [*titles, *titles[::50]]  # some stand there twice
    notes = [title[:2] if i % 40 else "A" * 300 for i, title in enumerate(titles)]
    aliases = ["" if i % 3 else title[::-1] for i, title in enumerate(titles)]
    if kind == "tsv":
        lines = ["title\taliases\tnote", *map("\t".join, zip(titles, aliases, notes, strict=True))]
        source = write_titles(tmp_path / "it.tsv", lines)
    else:
        source = tmp_path / "it.parquet"
        table = {"title": titles, "aliases": [[a] if a else [] for a in aliases], "note": notes}
        pq.write_table(pa.table(table), source, row_group_size=1500)
    options = BuildOptions(out=tmp_path / "it.index", max_bad_rows=9999)
    # Some titles are of more tokens.
    evidence = EvidenceOptions(ranking=write_rankings(tmp_path))
    options = replace(options, max_title_tokens=14, evidence=evidence)
    plan, summary = plan_build(source, ABC, options, sample=2000), build_index(source, ABC, options)
    assert plan.sampled is not None
    assert abs(plan.sampled - 2000) < 300
    counts, history = summary.manifest.counts, summary.manifest.history[-1]
    true = {"records": history.records, **{name: getattr(counts, name) for name in OF_ENTITIES}}
    assert {name: getattr(plan, name) for name in true} == pytest.approx(true, rel=0.08)
    stored = [file.bytes for file in summary.manifest.files if file.name not in EVIDENCE_FILES]
    assert plan.num_bytes == pytest.approx(sum(stored), rel=0.1)
    assert sum(plan.rejected.values()) == pytest.approx(sum(summary.rejected.values()), rel=0.25)
    assert plan.rejected.keys() == summary.rejected.keys()
    assert plan.evidence.names == pytest.approx(counts.postings, rel=0.08)
    assert plan.ranges["tokens"][0] < plan.tokens < plan.ranges["tokens"][1]
    assert plan.ranges["nodes"][0] < counts.nodes < plan.ranges["nodes"][1]
    assert plan.phases.keys() >= summary.seconds.keys() - {"publishing"}
    text = str(plan)
    assert f"estimated from {plan.sampled:,} rows; --sample 0 reads all and finds all bad rows" in text
    assert "line" not in plan.report
    exact = plan_build(source, ABC, options, sample=0)
    assert exact.sampled is None
    assert {name: getattr(exact, name) for name in true} == true


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sample", "many"], "expected a number of rows such as 10000, or all, got 'many'"),
        (["--sample", "-1"], "expected a number of rows"),
        (["--sample", "5"], "--sample goes with --dry-run"),
        (["--dry-run", "--sample", "5", "--rejects", "x"], "takes all rows: it goes with --sample 0"),
    ],
)
def test_a_sample_that_cannot_be_is_refused(tmp_path: Path, flags: list[str], said: str) -> None:
    source = write_titles(tmp_path / "t.tsv", ["a"])
    assert said in refusal(build_command, source, *flags)


def test_an_existing_index_is_not_touched(tmp_path: Path) -> None:
    options = BuildOptions(out=tmp_path / "it.index")
    build_index(write_titles(tmp_path / "one.tsv", ["a"]), ABC, options)
    before = {p: p.stat().st_mtime_ns for p in options.out.rglob("*")}
    plan_build(write_titles(tmp_path / "two.tsv", ["b"]), ABC, options)
    assert {p: p.stat().st_mtime_ns for p in options.out.rglob("*")} == before


def test_a_plan_says_that_the_build_would_fail(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "t.tsv", ["a", "", "aaaaaaaa"])
    plan = plan_build(source, ABC, BuildOptions(out=tmp_path / "it.index", max_title_tokens=4))
    text = str(plan)
    assert "2 bad rows: 1 × no title, 1 × over-long title" in text
    assert "longest over-long title: 9 tokens" in text
    assert "t.tsv line 3: 'aaaaaaaa'" in text
    assert "a build would fail: 2 bad rows, allowed: 0" in text


def test_nothing_but_bad_rows_has_a_plan_too(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "t.tsv", ["title\tkind", "\ta", "\tb"])
    plan = plan_build(source, ABC, BuildOptions(out=tmp_path / "it.index"))
    assert (plan.records, plan.entities, plan.rows, plan.num_bytes) == (2, 0, 0, 0)
    str(plan)
    with pytest.raises(SourceError, match="no such file"):
        plan_build(tmp_path / "absent", ABC, BuildOptions(out=tmp_path / "it.index"))


@pytest.mark.fault
def test_a_full_directory_for_temporary_files_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    source = write_titles(tmp_path / "t.tsv", ["a"])
    refused = pytest.raises(IndexDirectoryError, match=r"temporary files: No space left.*TMPDIR")
    with fault("shard-writing:enospc"), refused:
        plan_build(source, ABC, BuildOptions(out=tmp_path / "it.index"))
    assert not list((tmp_path / "tmp").iterdir())


def test_the_command(tmp_path: Path) -> None:
    options = ("--tokenizer", save_tokenizer(ABC, tmp_path / "checkpoint"), "--dry-run")
    source = write_titles(tmp_path / "t.tsv", ["title\tyear", "a\t1", "b\t2", "b\t2", "b\t3"])
    text = succeed(build_command, source, *options).stdout
    assert "4 records, of which 3 are entities; 2 rows" in text
    assert "metadata: year (int)" in text
    assert "estimated build time" in text
    document = json_of(build_command, source, *options, "--json", "--quiet")
    assert (document["records"], document["entities"], document["duplicates"]) == (4, 3, 1)
    assert document["row_lengths"] == {"2": 2}
    assert document["estimated_bytes"]["all"] == sum(document["estimated_bytes"].values()) / 2
    assert json_of(build_command, "-", *options, "--json", "--quiet", stdin="a\nb\n")["entities"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "t.tsv"]


def test_bad_rows_are_shown_and_written_where_the_user_says(tmp_path: Path) -> None:
    options = ("--tokenizer", save_tokenizer(ABC, tmp_path / "checkpoint"), "--dry-run")
    source = write_titles(tmp_path / "t.tsv", ["title", "a", "b\tc"])
    before = sorted(tmp_path.iterdir())
    assert run(build_command, source, *options).exit_code == 1  # as the build would
    options += ("--max-bad-rows", 1)
    said = succeed(build_command, source, *options).stderr
    assert "line 3: too many tabs (expected 1 fields, got 2): 'b\\tc'\nleft out\n" in said
    assert sorted(tmp_path.iterdir()) == before
    rejects = tmp_path / "bad.tsv"
    result = succeed(build_command, source, *options, "--rejects", rejects, "--json")
    assert f"left out; all of them are in {rejects}" in result.stderr
    assert json.loads(result.stdout)["rejects_file"] == str(rejects)
    assert rejects.read_text().startswith("line\treason\tdetail\ttext\n3\ttoo many tabs\t")
