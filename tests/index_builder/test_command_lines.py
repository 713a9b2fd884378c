"""The commands build-index and genret update: options, their defaults and refusals, and what is said."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from genret.index_builder import cli as build_cli
from genret.index_builder.build_options import (
    MIB,
    BuildOptions,
    EvidenceChange,
    EvidenceOptions,
    VectorBuildOptions,
    VectorChange,
)
from genret.index_builder.cli import build_command, update_command
from genret.index_builder.flags import (
    build_evidence_flags,
    byte_size,
    source_flags,
    typed_column,
    update_evidence_flags,
)
from genret.index_builder.past_queries import QueryFile
from genret.retrieval.errors import ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.index.versions import list_versions, live_version
from genret.retrieval.ranking.rankings import DEFAULT_RANKING, NO_MODEL, Rankings
from genret.retrieval.sources.columns import ColumnMapping, ColumnType
from genret.retrieval.text import Rendering
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.vector_maker import VectorOptions
from genret.service.main import cli
from tests.commands import json_of, refusal, succeed
from tests.index_fixtures import character_tokenizer, fault, flip, save_tokenizer, write_titles
from tests.trigram_encoder import DIMENSIONS

CHARACTERS = character_tokenizer("abcdefgh <>&;mp")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_tokenizer(CHARACTERS, tmp_path / "checkpoint")


def test_the_file_alone_is_enough(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cli, "default_model", lambda: checkpoint)
    result = succeed(build_command, write_titles(tmp_path / "some_titles.tsv", ["abc", "b"]))
    assert "2 entities, 2 rows (titles and aliases) of up to 4 tokens" in result.stdout
    assert "reading and tokenising" in result.stderr  # no terminal here: log lines
    with Index.open(tmp_path / "some_titles.index") as index:
        assert index.tokenizer_fingerprint == CHARACTERS.fingerprint
        assert index.rendering == Rendering()
    assert not (tmp_path / "some_titles.index.rejects.tsv").exists()


def test_the_checkpoint_says_how_titles_are_rendered(tmp_path: Path, checkpoint: Path) -> None:
    rendering = {"context": "", "prefix": "<", "suffix": ">", "end_token": None}
    (checkpoint / "genret.json").write_text(json.dumps({"format_version": 1, "rendering": rendering}))
    titles = write_titles(tmp_path / "t.txt", ["abc"])
    build_from(checkpoint, titles, "--quiet")
    with Index.open(tmp_path / "t.index") as index:
        assert index.rendering == Rendering(prefix="<", suffix=">")
    build_from(checkpoint, titles, "--title-prefix", " ", "--title-context", "a", "--end-token", "<")
    with Index.open(tmp_path / "t.index") as index:
        assert index.rendering == Rendering(context="a", prefix=" ", suffix=">", end_token="<")
        assert CHARACTERS.decode(index.row_token_ids(0)) == " abc><"


def test_json_summary_is_all_of_standard_output(tmp_path: Path, checkpoint: Path) -> None:
    titles = write_titles(tmp_path / "t.tsv", ["title\tkind", "abc\tn/a", "", "b\t1.50", "c\t7", "a\t"])
    result = build_from(checkpoint, titles, "--max-bad-rows", 1, "--json")
    assert f"'kind' is text, because {titles}, line 2 has 'n/a'; leave such" in result.stderr
    summary = json.loads(result.stdout)
    assert summary["counts"]["entities"] == 4
    assert summary["rejected"] == {"no title": 1}
    assert Path(summary["rejects_file"]).read_text().splitlines()[1].startswith("3\tno title")
    assert "line 3: no title" in result.stderr
    assert summary["bytes"] == sum(summary["files"].values())


def test_bad_rows_fail_and_say_how_to_allow_them(tmp_path: Path, checkpoint: Path) -> None:
    titles = write_titles(tmp_path / "t.txt", ["abc", "a\tb", *[""] * 6])
    options = ("--tokenizer", checkpoint, "--rejects", tmp_path / "bad.tsv")
    said = refusal(build_command, titles, *options, code=1)
    assert "7 bad rows (allowed: 0): 6 × no title, 1 × too many tabs" in said
    for part in ("line 2: too many tabs", "and 2 more", "--max-bad-rows 7"):
        assert part in said
    assert len((tmp_path / "bad.tsv").read_text().splitlines()) == 8
    assert not (tmp_path / "t.index").exists()


def test_standard_input(tmp_path: Path, checkpoint: Path) -> None:
    options = ("-", "--tokenizer", checkpoint)
    succeed(build_command, *options, "--out", tmp_path / "x.index", stdin="title\nabc\n")
    with Index.open(tmp_path / "x.index") as index:
        assert index.surface(0) == "abc"
    assert "--out INDEX" in refusal(build_command, *options)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["absent.tsv"], 1, "absent.tsv: no such file"),
        (["."], 1, "this is a directory"),
        (["empty.tsv"], 1, "empty.tsv: the file is empty"),
        (["header.tsv"], 1, "no title below it"),
        (["good.tsv", "--tokenizer", "absent/model"], 1, "no directory 'absent/model' in"),
        (["good.tsv", "--tokenizer", "empty.tsv"], 1, "not a readable tokenizer.json"),
        (["good.tsv", "--tokenizer", "."], 1, "no tokenizer.json in this directory"),
        (["good.tsv", "--end-token", "<eot>"], 2, "'<eot>' is not in the vocabulary"),
        (["good.tsv", "--max-title-tokens", "1"], 2, "--max-title-tokens"),
        (["good.tsv", "--keep-versions", "-1"], 2, "--keep-versions"),
        (["good.tsv", "--max-bad-rows", "-1"], 2, "--max-bad-rows"),
        (["good.tsv", "--format", "xml"], 2, "--format"),
        (["good.tsv", "--format", "tsv", "--delimiter", ";"], 2, "--delimiter goes with --format csv"),
        (["good.tsv", "--delimiter", "a"], 2, "expected one character, no letter"),
        (["good.tsv", "--out", "good.tsv"], 2, "is a file"),
        (["good.tsv", "--memory-limit", "100MiB"], 2, "--memory-limit: must be at least 512 MiB, got 100"),
        (["good.tsv", "--type", "a=int", "--type", "a=bool"], 2, "column 'a' is given more than one type"),
        (["good.tsv", "--title-column", ""], 2, "--title-column: must not be empty"),
        (["good.tsv", "--no-metadata", "--metadata", "a"], 2, "goes without --metadata and --type"),
        (["good.tsv", "--evidence", "none", "--ranking", "x"], 2, "--ranking goes without --evidence none"),
        ([], 2, "TITLES"),
    ],
)
def test_mistakes_are_answered_without_a_traceback(
    tmp_path: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(build_cli, "default_model", lambda: checkpoint)
    write_titles(tmp_path / "good.tsv", ["abc"])
    write_titles(tmp_path / "header.tsv", ["title"])
    (tmp_path / "empty.tsv").touch()
    assert message in " ".join(refusal(build_command, *arguments, code=status).split())


def test_no_default_model_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise ModelError("the shipped default model was not found; name one")

    monkeypatch.setattr(build_cli, "default_model", absent)
    said = refusal(build_command, write_titles(tmp_path / "t.txt", ["abc"]), code=1)
    assert said.startswith("Error: the shipped default model was not found")


def build_from(checkpoint: Path, *arguments: object) -> Result:
    return succeed(build_command, *arguments, "--tokenizer", checkpoint)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512MiB", 512 * MIB),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("1.5 gb", 3 << 29),
        ("700m", 700 * MIB),
        ("1048576K", 1 << 30),
        ("1073741824", 1 << 30),
        ("1073741824B", 1 << 30),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert byte_size(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1 X", "1e9", "2 GiB more"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected bytes such as 512MiB"):
        byte_size(text)


def test_types_of_columns() -> None:
    assert typed_column("year=int") == ("year", ColumnType.INT)
    assert typed_column("a=b=string") == ("a=b", ColumnType.STRING)
    for text in ("year", "year=", "=int", "year=integer"):
        with pytest.raises(click.BadParameter, match="expected COLUMN=TYPE with a type of string, int"):
            typed_column(text)


def test_the_defaults_and_variables_of_another_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    @click.command()
    @source_flags
    @click.option("--more", default=3)
    def command(options: BuildOptions, more: int) -> None:
        found.append((options, more))

    assert CliRunner().invoke(command, []).exit_code == 0
    assert found.pop() == (BuildOptions(Path()), 3)
    monkeypatch.setenv("GENRET_UPDATE_METADATA", "year kind")
    monkeypatch.setenv("GENRET_UPDATE_TYPE", "year=int")
    monkeypatch.setenv("GENRET_UPDATE_MEMORY_LIMIT", "1G")
    monkeypatch.setenv("GENRET_UPDATE_UNESCAPE_HTML", "1")
    words = ["--more", "4", "--title-column", "name"]
    assert CliRunner().invoke(command, words, auto_envvar_prefix="GENRET_UPDATE").exit_code == 0
    mapping = ColumnMapping(title="name", metadata=("year", "kind"), types={"year": ColumnType.INT})
    assert found.pop() == (BuildOptions(Path(), mapping=mapping, unescape_html=True, memory_limit=1 << 30), 4)


def test_columns_formats_and_several_files(tmp_path: Path, checkpoint: Path) -> None:
    one = write_titles(tmp_path / "one.tsv", ["qid\tname\talso\tyear\tnote", "q1\ta\tb;c\t1990\tx"])
    two = tmp_path / "two.jsonl.gz"
    rows = [{"qid": "q2", "name": "d", "also": ["e"], "year": 2.5}, {"qid": "q3", "name": "f"}]
    two.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    options = ["--title-column", "name", "--id-column", "qid", "--aliases-column", "also"]
    options += ["--alias-separator", ";", "--metadata", "year", "--type", "year=float", "--json", "--quiet"]
    summary = json.loads(build_from(checkpoint, one, two, *options).stdout)
    assert summary["metadata"] == {"year": "float"}
    assert summary["records"] == 3
    with Index.open(tmp_path / "one.index") as index:
        found = {e.entity_id: e for e in map(index.entity, range(3))}
        assert (found["q1"].title, found["q1"].aliases) == ("a", ("b", "c"))
        assert found["q1"].metadata == {"year": 1990.0}
        assert (found["q2"].aliases, found["q2"].metadata) == (("e",), {"year": 2.5})
        assert found["q3"].metadata == {"year": None}
        names = [file.name for file in index.manifest.history[-1].sources]
        assert names == ["one.tsv", "two.jsonl.gz"]
    more = write_titles(tmp_path / "more.tsv", ["qid\tname\talso\tnote", "q1\tc\ta;b\tx"])
    usual = write_titles(tmp_path / "usual.tsv", ["entity_id\ttitle", "q4\tb"])
    succeed(update_command, tmp_path / "one.index", "--add", more, "--add", usual, "--tokenizer", checkpoint)
    with Index.open(tmp_path / "one.index") as index:
        found = {e.entity_id: e for e in map(index.entity, range(4))}
    assert (found["q1"].title, found["q1"].aliases, found["q4"].title) == ("c", ("a", "b"), "b")
    wrong = ["--add", more, "--title-column", "nam", "--tokenizer", checkpoint]
    assert "did you mean 'name'?" in refusal(update_command, tmp_path / "one.index", *wrong, code=1)


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_second_file_of_aliases_may_name_entities_by_title(
    tmp_path: Path, checkpoint: Path, with_ids: bool
) -> None:
    lines = ["entity_id\ttitle", "q1\ta", "q2\tb"] if with_ids else ["title", "a", "b"]
    titles = write_titles(tmp_path / "t.tsv", lines)
    aliases = write_titles(tmp_path / "aliases.tsv", ["title\talias", "a\tc", "d\te"])
    said = refusal(build_command, titles, "--aliases", aliases, "--tokenizer", checkpoint, code=1)
    assert "aliases.tsv, line 3: alias of an unknown entity" in said
    result = build_from(checkpoint, titles, "--aliases", aliases, "--max-bad-rows", 1, "--json")
    assert json.loads(result.stdout)["rejected"] == {"alias of an unknown entity": 1}
    with Index.open(tmp_path / "t.index") as index:
        assert index.entity(0).aliases == ("c",)


def test_html_entities_stay_unless_asked(tmp_path: Path, checkpoint: Path) -> None:
    titles = write_titles(tmp_path / "t.txt", ["a &amp; b"])
    result = build_from(checkpoint, titles)
    assert "titles: 1 with HTML entities kept" in result.stdout
    result = build_from(checkpoint, titles, "--unescape-html", "--json")
    assert json.loads(result.stdout)["normalization"]["unescaped"] == 1
    with Index.open(tmp_path / "t.index") as index:
        assert index.entity(0).title == "a & b"


@pytest.fixture
def interrupted(tmp_path: Path, checkpoint: Path) -> Path:
    """Titles of a build that was interrupted when both records were tokenised."""
    titles = write_titles(tmp_path / "t.txt", ["a", "b"])
    with fault("merge-started:interrupt"):
        said = refusal(build_command, titles, "--tokenizer", checkpoint, code=130)
    assert "nothing was built at" in said
    assert "2 records are tokenised already: the same command goes on from there" in said
    return titles


def test_what_was_interrupted_is_taken_up_by_the_next_command(checkpoint: Path, interrupted: Path) -> None:
    result = build_from(checkpoint, interrupted)
    assert "build-index: resuming: 2 records in 1 shard are already tokenised" in result.stderr
    assert "2 records were taken over from an earlier run" in result.stdout
    summary = json.loads(build_from(checkpoint, interrupted, "--json").stdout)
    assert summary["resumed"] == {"shards": 0, "records": 0}
    assert summary["seconds"].keys() >= {"reading and tokenising", "resolving entities", "publishing"}
    assert summary["peak_rss_bytes"] > 10 * MIB


def test_no_resume(checkpoint: Path, interrupted: Path) -> None:
    result = build_from(checkpoint, interrupted, "--no-resume", "--json")
    assert "resuming" not in result.stderr
    assert json.loads(result.stdout)["resumed"]["shards"] == 0


def test_metadata_can_be_left_out_altogether(checkpoint: Path, tmp_path: Path) -> None:
    titles = write_titles(tmp_path / "c.jsonl", ['{"title": "a", "kind": [1]}'])
    assert json.loads(build_from(checkpoint, titles, "--no-metadata", "--json").stdout)["metadata"] == {}


def wished(flags: Any, line: str, **environment: str) -> Any:
    """Return what a command with the options gets from a command line."""
    got: list[Any] = []

    def command(evidence: Any) -> None:
        got.append(evidence)

    decorated = click.command()(flags(command))
    result = CliRunner().invoke(
        decorated, shlex.split(line), env=environment, standalone_mode=False, auto_envvar_prefix="X"
    )
    if result.exception is not None:
        raise result.exception
    return got[0]


def encoder(source: str = "a/b", **options: Any) -> VectorBuildOptions:
    return VectorBuildOptions(VectorMethod("encoder", source), VectorOptions(**options))


SENTENCES = VectorBuildOptions(VectorMethod("sentence-transformers", "hub/m"), VectorOptions(device="cuda:1"))
FILE, SPLIT = QueryFile(Path("a.tsv")), QueryFile(Path("a.tsv"), "train")


@pytest.mark.parametrize(
    ("line", "wish"),
    [
        ("", None),
        ("--vectors none", None),
        ("--vectors encoder:a:b", encoder("a:b")),
        ("--vectors sentence-transformers:hub/m --vector-device cuda:1", SENTENCES),
        (
            "--vectors=encoder:a/b --vector-index=IVF64,PQ8 --vector-sample=9",
            encoder(kind="IVF64,PQ8", sample=9),
        ),
        ("--vectors encoder:a/b --evidence-columns 'a, b c'", encoder(columns=("a", "b c"))),
        ("--vectors encoder:a/b --evidence-columns ''", encoder(columns=())),
    ],
)
def test_vectors_that_are_asked_for(line: str, wish: VectorBuildOptions | None) -> None:
    assert wished(build_evidence_flags, line)[1] == wish
    if wish is not None:
        assert wished(update_evidence_flags, line)[1] == VectorChange(wish)


@pytest.mark.parametrize(
    ("line", "wish"),
    [
        ("", EvidenceOptions()),
        ("--evidence all", EvidenceOptions()),
        ("--evidence none", None),
        ("--evidence-columns 'a, b c'", EvidenceOptions(("a", "b c"))),
        ("--evidence-columns ''", EvidenceOptions(())),
        ("--queries a.tsv#train --queries a.tsv", EvidenceOptions(None, (SPLIT, FILE))),
    ],
)
def test_evidence_that_is_asked_of_a_build(line: str, wish: EvidenceOptions | None) -> None:
    assert wished(build_evidence_flags, line)[0] == wish


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("", EvidenceChange()),
        ("--evidence all", EvidenceChange(EvidenceOptions())),
        ("--evidence none", EvidenceChange(drop=True)),
        ("--evidence all --evidence-columns a", EvidenceChange(EvidenceOptions(("a",)))),
        ("--queries a.tsv", EvidenceChange(queries=(FILE,))),
        ("--queries none", EvidenceChange(drop_queries=True)),
        ("--queries none --queries a.tsv", EvidenceChange(queries=(FILE,), drop_queries=True)),
    ],
)
def test_evidence_that_is_asked_of_an_update(line: str, change: EvidenceChange) -> None:
    assert wished(update_evidence_flags, line)[0] == change


def test_a_file_of_queries_that_has_a_hash_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / "a#b"
    file.write_text("x")
    assert QueryFile.parse(str(file)) == QueryFile(file)
    assert QueryFile.parse(f"{file}#dev") == QueryFile(file, "dev")


def test_what_an_update_may_be_told_beside() -> None:
    assert wished(update_evidence_flags, "")[1] == VectorChange()
    assert wished(update_evidence_flags, "--vectors none")[1] == VectorChange(drop=True)
    wish = wished(update_evidence_flags, "--encoder x --vector-device cuda")
    assert wish[1] == VectorChange(device="cuda", encoder="x")


KNOWN = "expected encoder:MODEL or sentence-transformers:MODEL"
DEVICES = "--vector-device: expected auto, cpu, cuda, "


BUILD, UPDATE = (build_evidence_flags,), (update_evidence_flags,)
BOTH = (*BUILD, *UPDATE)


@pytest.mark.parametrize(
    ("commands", "line", "message"),
    [
        (BOTH, "--vectors magic", f"{KNOWN}, got 'magic'"),
        (BOTH, "--evidence some", "'some' is not one of 'all', 'none'"),
        (BOTH, "--queries '#train'", "queries: expected FILE or FILE#SPLIT, got '#train'"),
        (BOTH, "--queries 'x.tsv#'", "queries: expected FILE or FILE#SPLIT, got 'x.tsv#'"),
        (BOTH, "--evidence none --evidence-columns a", "--evidence-columns goes with"),
        (BOTH, "--evidence none --queries a", "evidence"),
        (BOTH, "--vector-index flat", "--vector-index goes with --vectors METHOD"),
        (BOTH, "--vectors encoder:a/b --evidence-columns a,a", "expected different columns"),
        (BOTH, "--vectors encoder:a/b --evidence-columns a,,b", "expected different columns"),
        (BOTH, "--vectors encoder:a/b --vector-sample 0", "not in the range"),
        (BOTH, "--vectors encoder:a/b --vector-device gpu9", DEVICES),
        (BOTH, "--vectors encoder:x --vector-device ''", "xpu or xpu:N, got ''"),
        (BOTH, "--vectors encoder:a/b --vector-index ''", "--vector-index: expected"),
        (BUILD, "--vector-device cuda", "--vector-device goes with"),
        (UPDATE, "--vector-device gpu", f"{DEVICES}cuda:N, mps, xpu or xpu:N, got 'gpu'"),
        (UPDATE, "--vectors none --encoder x", "encoder: says where"),
    ],
)
def test_what_is_refused(commands: Sequence[Any], line: str, message: str) -> None:
    for flags in commands:
        with pytest.raises(click.UsageError) as caught:
            wished(flags, line)
        assert message in caught.value.format_message()


@pytest.mark.usefixtures("trigrams")
def test_a_dry_run_says_what_vectors_a_build_would_make(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="needs the extra vectors")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    lines = ["title\taliases\tdescription\tnote"]
    lines += [
        f"name {i}\tother {i}|third {i}\t{'said' if i % 2 else ''}\tn" for i in range(40)
    ]  # too few for a ranking
    titles = write_titles(tmp_path / "titles.tsv", lines)
    method = f"encoder:{tmp_path / 'model'}"
    dry_run = [titles, "--vectors", method, "--dry-run"]

    def planned(*further: object) -> Any:
        return json_of(build_command, *dry_run, "--json", *further)

    plan = planned()
    vectors, evidence = plan["vectors"], plan["evidence"]
    assert (vectors["texts"], vectors["kind"], vectors["dimensions"]) == (140, "flat", DIMENSIONS)
    assert (evidence["names"], evidence["columns"], evidence["texts"]) == (120, ["description"], 20)
    plan = planned("--evidence-columns", "note,description")
    assert (plan["vectors"]["texts"], plan["evidence"]["texts"]) == (180, 40)
    assert planned("--evidence", "none")["evidence"] is None
    queries = write_titles(
        tmp_path / "queries.tsv", ["query\ttitle\tcount", "one\tname 1\t3", "two\tname 1\t"]
    )
    assert planned("--queries", queries)["evidence"]["queries"] == 2
    text = succeed(build_command, *dry_run).stdout
    assert f"and vectors: {method}, 140 texts, flat, of {DIMENSIONS} dimensions, about" in text
    assert "and evidence: 120 names, 20 texts of description, about " in text
    assert "Magic7" in refusal(build_command, *dry_run, "--vector-index", "Magic7")


LINES = ["entity_id\ttitle\tkind", "Q1\tab\tx", "Q2\tcd\ty", "Q3\tda\tx"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    out = tmp_path / "it.index"
    succeed(cli, "build", write_titles(tmp_path / "titles.tsv", LINES), "--out", out, "--quiet")
    return out


def _ids(index: Path) -> set[str]:
    with Index.open(index) as opened:
        return set(opened.entities.column("entity_id").to_pylist())


def test_update_rollback_and_inspect(tmp_path: Path, index: Path) -> None:
    first = live_version(index)
    more = write_titles(tmp_path / "more.tsv", ["entity_id\ttitle\tkind", "Q1\tdd\tx", "Q9\tb\t"])
    gone = write_titles(tmp_path / "gone.txt", ["Q2", ""])
    arguments = ["update", index, "--add", more, "--remove", gone, "--remove-id", "Q3"]
    assert json_of(cli, *arguments, "--dry-run", "--quiet", "--json")["published"] is False
    assert live_version(index) == first
    assert "1 added, 1 changed, 2 removed" in succeed(cli, *arguments).stdout
    assert _ids(index) == {"Q1", "Q9"}
    second = live_version(index)
    versions = succeed(cli, "inspect", index).stdout
    assert f"* {second}  2 entities, update of {first}" in versions
    assert f"  {first}  3 entities, build" in versions
    back = {"index": str(index), "before": second, "version": first, "entities": 3}
    assert json_of(cli, "rollback", index, "--json") == back
    assert _ids(index) == {"Q1", "Q2", "Q3"}
    succeed(cli, "rollback", index, "--to", second[:8])
    assert live_version(index) == second
    assert "live already" in succeed(cli, "rollback", index, "--to", second).stdout
    assert list_versions(index) == [second, first]


def test_updating_twice_with_the_same_files_says_no_change(tmp_path: Path, index: Path) -> None:
    same = write_titles(tmp_path / "same.tsv", LINES)
    assert "no change" in succeed(cli, "update", index, "--add", same).stdout
    assert len(list_versions(index)) == 1


def test_errors_are_one_line(tmp_path: Path, index: Path) -> None:
    assert "nothing to do" in refusal(cli, "update", index)
    assert "no such directory" in refusal(cli, "update", tmp_path / "none", "--remove-id", "x", code=1)
    said = refusal(cli, "update", index, "--remove-id", "Q7", "--quiet", code=1)
    assert "unknown entity_id: 'Q7'" in said
    assert "allow them with --ignore-missing (they" in said
    assert said.endswith(f"\nall bad rows are in {index}.rejects.tsv")


def test_rollback_lists_what_there_is_when_it_cannot(index: Path) -> None:
    live = live_version(index)
    for arguments in ([], ["--to", "0" * 32], ["--to", ""]):
        assert f"{live} (live)" in refusal(cli, "rollback", index, *arguments, code=1)


def test_rollback_refuses_a_damaged_version(index: Path) -> None:
    first = live_version(index)
    succeed(cli, "update", index, "--remove-id", "Q1")
    second = live_version(index)
    flip(index / "versions" / first / "trie.arrow")
    assert "trie.arrow" in refusal(cli, "rollback", index, code=1)
    assert live_version(index) == second
    assert not (index / "staging").exists()


@pytest.mark.parametrize("lost", ["manifest.json", "trie.arrow"])
def test_rollback_leaves_a_damaged_live_version(index: Path, lost: str) -> None:
    first = live_version(index)
    succeed(cli, "update", index, "--remove-id", "Q1")
    (index / "versions" / live_version(index) / lost).write_bytes(b"{}")
    way_back = f"; another version is there: genret rollback {index} --to {first}"
    for command in (["verify", index], ["inspect", index], ["update", index, "--remove-id", "Q2"]):
        assert refusal(cli, *command, code=1).endswith(way_back)
    succeed(cli, "rollback", index)
    assert live_version(index) == first


def test_versions_that_go_away_are_not_listed(index: Path) -> None:
    (index / "versions" / ("0" * 32)).symlink_to(index / "none")  # as one just removed: named, not there
    assert list_versions(index) == [live_version(index)]


def test_rollback_after_a_rollback_and_an_update_returns_to_where_the_update_started(index: Path) -> None:
    first = live_version(index)
    succeed(cli, "update", index, "--remove-id", "Q2")  # a mistake
    mistake = live_version(index)
    succeed(cli, "rollback", index)
    succeed(cli, "update", index, "--remove-id", "Q3", "--keep-versions", "1")
    assert live_version(index) != mistake
    assert set(list_versions(index)) == {live_version(index), first}  # the mistake went, although younger
    succeed(cli, "rollback", index)
    assert live_version(index) == first


@pytest.fixture
def sixty(tmp_path: Path) -> Path:
    return write_titles(tmp_path / "titles.txt", [f"Title number {i}" for i in range(60)])


def test_an_index_takes_the_rankings_of_a_file(sixty: Path) -> None:
    rankings = Rankings().with_one(NO_MODEL, DEFAULT_RANKING).with_one("some model", DEFAULT_RANKING)
    file = sixty.with_name("ranking.json")
    file.write_bytes(rankings.to_bytes())
    assert succeed(build_command, sixty, "--ranking", file, "--quiet").output == ""
    with Index.open(sixty.with_name("titles.index")) as index:
        assert Rankings.read(index).to_bytes() == rankings.to_bytes()
        assert index.manifest.history[-1].options["evidence"]["ranking"] == str(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("[]", "expected rankings of format version 1"),
        (json.dumps({"format_version": 1, "rankings": {"": {"weights": {"x": 1}}}}), "not a ranking"),
    ],
)
def test_a_file_without_rankings_is_refused_before_anything_is_made(
    sixty: Path, content: str | None, message: str
) -> None:
    file = sixty.with_name("ranking.json")
    if content is not None:
        file.write_text(content, encoding="utf-8")
    said = refusal(build_command, sixty, "--ranking", file)
    assert f"ranking: {file}: " in said
    assert message in said
    assert not sixty.with_name("titles.index").exists()
