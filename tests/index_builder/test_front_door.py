"""`genret.build_index`: rows in memory make the index that files make, under the options of the command."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from inspect import signature
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret import Index, build_index
from genret.index_builder import cli
from genret.index_builder.build_plan import BuildPlan
from genret.index_builder.cli import build_command, build_wish
from genret.index_builder.front_door import _wish
from genret.retrieval.errors import InputError, ModelError, SourceError
from tests.commands import refusal
from tests.index_fixtures import character_tokenizer, live_content, save_tokenizer, write_titles

ABC = character_tokenizer("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789é")
SCHEMA = pa.schema(
    {
        "entity_id": pa.string(),
        "title": pa.string(),
        "aliases": pa.list_(pa.string()),
        "born": pa.int64(),
        "share": pa.float64(),
        "alive": pa.bool_(),
        "description": pa.string(),
    }
)
WORDS = st.text("abcé", min_size=1, max_size=5)
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "aliases": st.lists(WORDS, max_size=3),
    "born": st.integers(-(1 << 60), 1 << 60),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "alive": st.booleans(),
    "description": st.one_of(WORDS, st.sampled_from(["1", "true", "", " a\tb "])),
}
CATALOGUES = st.lists(
    st.fixed_dictionaries({"title": WORDS, **{name: st.none() | cell for name, cell in CELLS.items()}}),
    min_size=1,
    max_size=12,
)
HF = datasets.Dataset.from_dict({"title": ["a"]})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(ABC, tmp_path_factory.mktemp("front") / "tokenizer")


def every_form(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Return a catalogue in files and in every form that is taken from memory."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    pq.write_table(table, folder / "rows.parquet")
    frame = pl.DataFrame(table)
    return {
        "JSON Lines": folder / "rows.jsonl",
        "Parquet": str(folder / "rows.parquet"),
        "dicts": rows,
        "generator": (dict(row) for row in rows),
        "pandas": table.to_pandas(types_mapper=pd.ArrowDtype),
        "pandas, an index": table.to_pandas(types_mapper=pd.ArrowDtype)[lambda frame: frame.title != ""],
        "polars": frame,
        "polars, lazy": frame.lazy(),
        "polars, categories": frame.with_columns(pl.col("description").cast(pl.Categorical)),
        "Arrow": table,
        "Arrow, a dataset": ds.dataset(table),
        "Arrow, in batches": table.to_reader(max_chunksize=2),
        "datasets": datasets.Dataset(table),
        "datasets, streamed": datasets.Dataset(table).to_iterable_dataset(),
    }


def check_forms(
    rows: list[dict[str, Any]], tokenizer: Path, forms: tuple[str, ...] = (), **options: Any
) -> None:
    # hypothesis changes the order of keys, which is that of the columns.
    names = SCHEMA.names[1:]
    rows = [{"entity_id": f"Q{n}", **{name: row[name] for name in names}} for n, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        contents, versions = {}, {}
        found = every_form(rows, Path(folder))
        for form, source in ((form, found[form]) for form in forms or found):
            out = Path(folder, f"{form}.index")
            versions[form] = build_index(source, out, tokenizer=tokenizer, **options).version
            contents[form] = live_content(out)
    wanted = contents["JSON Lines"]
    assert {form: content == wanted for form, content in contents.items()} == dict.fromkeys(contents, True)
    # A version is named by its manifest, which has the names and digests of the files it was read from.
    in_memory = {version for form, version in versions.items() if form not in ("JSON Lines", "Parquet")}
    assert len(in_memory) == 1


@settings(max_examples=3)
@given(CATALOGUES)
def test_every_form_makes_the_same_index(tokenizer: Path, rows: list[dict[str, Any]]) -> None:
    check_forms(rows, tokenizer, evidence="none")


def test_every_form_makes_the_same_evidence_weights_and_ranking(tokenizer: Path) -> None:
    rows = [
        {
            "title": f"{a}{b} {b}{a}",
            "aliases": [a + a, b] if a < b else None,
            "born": ord(a) if a != b else None,
            "share": ord(b) / 7,
            "alive": a < b,
            "description": f"the word {b} behind {a}",
        }
        for a in "abcdefgh"
        for b in "abcdefgh"
    ]
    forms = ("JSON Lines", "polars")
    check_forms(rows, tokenizer, forms, weight_column="share", metadata=["description", "born", "alive"])


def test_values_of_other_types_are_what_they_hold(tokenizer: Path, tmp_path: Path) -> None:
    plain = {"title": "a", "aliases": ["b", "c"], "n": 3, "x": 0.5, "y": True, "z": None}
    plain |= {"entity_id": "7", "day": "2020-01-02", "price": "1.50", "none": None}
    made = {
        "title": np.str_("a"),
        "aliases": ("b", np.str_("c")),
        "n": np.int32(3),
        "x": np.float64(0.5),
        "y": np.bool_(True),
        "z": float("nan"),
        "entity_id": 7.0,
        "day": date(2020, 1, 2),
        "price": Decimal("1.50"),
        "none": pd.NaT,
    }
    for name, row in (("one", plain), ("two", made), ("three", plain | {"aliases": np.array(["b", "c"])})):
        build_index([row], tmp_path / name, tokenizer=tokenizer, evidence="none")
    one, two, three = (live_content(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two == three


def test_a_named_index_of_pandas_is_a_column_and_another_is_none(tokenizer: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame({"entity_id": ["Q1", "Q2", "Q3"], "title": ["a", "b", "c"], "n": [1, 2, 3]})
    build_index(frame[frame.n > 1], tmp_path / "some", tokenizer=tokenizer)
    with Index.open(tmp_path / "some") as index:
        assert list(index.metadata_columns) == ["n"]
        assert index.entity(0).entity_id == "Q2"
    build_index(frame.set_index("entity_id"), tmp_path / "named", tokenizer=tokenizer)
    with Index.open(tmp_path / "named") as index:
        assert index.entity(0).entity_id == "Q1"


def test_what_was_built_shows_itself(tokenizer: Path, tmp_path: Path) -> None:
    built = build_index([{"title": "a", "n": 1}], str(tmp_path / "it.index"), tokenizer=str(tokenizer))
    assert str(built).startswith(f"{tmp_path / 'it.index'}: version {built.version}\n  1 entities, 1 rows")
    assert "metadata: n (int)" in str(built)
    plan = build_index([{"title": "a"}], tmp_path / "no.index", tokenizer=tokenizer, dry_run=True)
    assert isinstance(plan, BuildPlan)
    assert plan.entities == 1
    assert str(plan).startswith("dry run: 1 records")
    assert not (tmp_path / "no.index").exists()


def test_what_fails_goes_without_advice_on_the_default_model(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("default_model", "small_model_dir", "missing_weights"):
        monkeypatch.setattr(cli, name, lambda: tokenizer)
    with pytest.raises(SourceError):
        build_index([{"title": ""}], tmp_path / "it.index")
    titles = write_titles(tmp_path / "t.tsv", ["title", ""])
    assert "small model" not in refusal(build_command, titles, code=1)
    with pytest.warns(UserWarning, match="the tokens of the small model; for the default model: .*tokenizer"):
        build_index([{"title": "a"}], tmp_path / "it.index")


def test_progress_is_silent_without_a_terminal(
    tokenizer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_index([{"title": "a"}], tmp_path / "it.index", tokenizer=tokenizer)
    assert capfd.readouterr() == ("", "")


def test_files_are_told_by_lines_and_rows_by_number(tokenizer: Path, tmp_path: Path) -> None:
    lines = write_titles(tmp_path / "t.jsonl", ['{"title": "a"}', '{"title": null}'])
    with pytest.raises(SourceError, match=r"t\.jsonl: 1 bad row \(allowed: 0\).*\n  line 2: no title"):
        build_index(lines, tmp_path / "it.index", tokenizer=tokenizer)
    with pytest.raises(SourceError, match=r"the given list: 1 bad row \(allowed: 0\).*\n  row 2: no title"):
        build_index([{"title": "a"}, {"title": None}], tmp_path / "it.index", tokenizer=tokenizer)
    frame = pd.DataFrame({"title": ["a", "b", ""]})
    told = r"the given DataFrame: 1 bad row.*\n  row 3: no title: ''\nleft out; all"
    with pytest.warns(UserWarning, match=told) as warned:
        built = build_index(frame, tmp_path / "it.index", tokenizer=tokenizer, max_bad_rows=1)
    with pytest.warns(UserWarning, match="neither a special token") as deeper:
        build_index([{"title": "a"}], tmp_path / "end.index", tokenizer=tokenizer, end_token="b")
    assert {one.filename for one in (*warned, *deeper)} == {__file__}  # the line that is to be changed
    assert built.rejected == {"no title": 1}
    twice = [{"entity_id": "Q1", "title": "a"}, {"entity_id": "Q1", "title": "b"}]
    with pytest.raises(SourceError, match="'Q1', first on row 1 with other fields"):
        build_index(twice, tmp_path / "it.index", tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", 1), r"row 2: not a JSON object \(got a tuple\): \"\('a', 1\)\""),
        ("a", r"row 2: not a JSON object \(got a string\)"),
        ({"title": 1e16}, r"\(title: expected a string or a whole number below 2\*\*53, got 1e\+16\)"),
        ({"title": "b", "n": Path("x")}, "or null, got a PosixPath; leave the column out: metadata= names "),
        ({"title": "a --type '--type"}, r"""unknown token .*"a --type '--type"\n.* max_bad_rows=1 """),
        ({"title": "b", "n": np.timedelta64(1, "ns")}, r"or null, got a timedelta.*: 'b \| 0:00:00 \| '"),
        ({"title": "b", "aliases": {"c"}}, "aliases: expected a list of strings, got a set"),
        ({"title": "b", 7: 1}, r"unknown field \(7 is in none of the first 10,000 rows, by which"),
        ({"title": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_a_bad_row_says_what_is_wrong(tokenizer: Path, tmp_path: Path, row: Any, message: str) -> None:
    rows = [{"title": "a", "n": 1, "aliases": None}, row]
    with pytest.raises(SourceError, match=message):
        build_index(rows, tmp_path / "it.index", tokenizer=tokenizer)
    assert not (tmp_path / "it.index").exists()


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (3, {}, InputError, "source: expected paths, an iterable of dicts, or a table, got a int"),
        ({"title": ["a"]}, {}, InputError, "or a table, got a dict; pyarrow.table makes a table"),
        ([], {}, SourceError, "the given list: none of the first rows is a dict with fields; there is none"),
        ([("a",)], {}, SourceError, "first rows is a dict with fields; the first is a tuple; titles in mem"),
        (datasets.DatasetDict({"x": HF}), {}, InputError, r"give one of its tables, such as \['x'\]"),
        (ds.dataset(HF.data.table).scanner(), {}, InputError, r"a Scanner; \.to_table\(\) makes a table"),
        (pl.DataFrame({"title": [HF]}, {"title": pl.Object}), {}, SourceError, r"\[8\]; .* make text of it"),
        (pd.DataFrame({"title": ["a"], "d": pd.to_timedelta([1])}), {}, SourceError, "make numbers of it,"),
        ([{"name": "a"}], {}, SourceError, "no column is called 'title'; the columns are 'name'"),
        (pd.DataFrame({"title": []}), {}, SourceError, "there is a header but no title below it"),
        (pd.DataFrame({"title": ["a", 1]}), {}, SourceError, 'types: df."title". = df."title".[.]astype'),
        (pl.DataFrame({"title": ["a"], "n": [[1]]}), {}, SourceError, "column 'n' is of type large_list"),
        (pl.Series("title", ["a"]), {}, InputError, r'a Series; \.to_frame\("title"\) makes a table'),
        (pd.DataFrame([[1, 2]], columns=["title"] * 2), {}, SourceError, "Duplicate column names found"),
        (
            pd.DataFrame({"title": pd.array(["2020"], "period[Y]")}),
            {},
            SourceError,
            "extension<pandas.period",
        ),
        (pd.DataFrame(), {}, SourceError, "columns are none .build: title_column= names another"),
        (["Lion", "A/C"], {}, InputError, "names no file: 'Lion', 'A/C'; titles in memory are given as"),
        ({"Lion"}, {}, SourceError, "the first is a string; titles in memory are given as dicts: "),
        (pa.table({"title": ["a"], "n": [{"x": 1}]}), {}, SourceError, "column 'n' is of type struct"),
        (datasets.Dataset.from_dict({}), {}, SourceError, "the given Dataset: there is no row"),
        ("absent.tsv", {}, SourceError, "absent.tsv: no such file"),
        (["absent.tsv", Path("b.tsv")], {}, SourceError, "absent.tsv: no such file"),
        ([{"title": "a"}], {"format": "tsv"}, InputError, "format: rows in memory have none; expected auto"),
        ([{"title": "a"}], {"memory_limit": "1 GO"}, InputError, "^memory_limit: expected bytes such as"),
        ([{"title": "a"}], {"memory_limit": 1 << 20}, InputError, "memory_limit: must be at least 512 MiB"),
        ([{"title": "a"}], {"type": {"a": "date"}}, InputError, "^type: expected COLUMN=TYPE with a"),
        ([{"title": "a"}], {"max_bad_rows": -1}, InputError, "^max_bad_rows: -1 is not in the range x>=0"),
        (
            [{"title": "a"}],
            {"no_metadata": True, "metadata": ["b"]},
            InputError,
            "^no_metadata: goes without metadata= and type=$",
        ),
        ([{"title": "a"}], {"sample": 5}, InputError, "^sample: goes with dry_run=True$"),
        ([{"title": "a"}], {"title_column": ""}, InputError, "^title_column: must not be empty"),
        ([{"title": "a"}], {"aliases_column": ""}, InputError, "^aliases_column: must not be empty"),
        (
            [{"title": "a"}],
            {"metadata": False},
            InputError,
            "^metadata: expected text or a number, got a bool",
        ),
        ([{"title": "a"}], {"dry_run": "no"}, InputError, "^dry_run: expected True or False, got 'no'"),
        ([{"title": "a"}], {"progress": "no"}, InputError, "^progress: expected True or False, got 'no'"),
        ([{"title": "a"}], {"aliases": ["a", "b"]}, InputError, "^aliases: expected one value, got 2"),
        (
            [{"title": "a"}],
            {"queries": pd.DataFrame()},
            InputError,
            "^queries: expected text or a number, got",
        ),
        ("sqlite:///x.db", {}, InputError, "^source: sqlite:.* needs a query; say which with sql=$"),
        ([{"title": "a"}], {"tokenizer": "absent/model"}, ModelError, "no directory 'absent/model'"),
        ([{"title": "a"}], {"tokeniser": "x"}, InputError, "tokeniser: .*; did you mean tokenizer"),
        ([{"title": "a"}], {"weight_column": "n"}, SourceError, "the given list: no column is called 'n'"),
        ([{"title": "a", "n": -1}], {"weight_column": "n"}, SourceError, "row 1: bad value .n: expected a"),
    ],
)
def test_mistakes_are_typed_errors_of_one_text(
    tokenizer: Path,
    tmp_path: Path,
    source: Any,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        build_index(source, tmp_path / "it.index", **{"tokenizer": tokenizer, **options})
    assert not (tmp_path / "it.index").exists()


OPTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"metadata": ["a", "b"], "type": {"a": "int", "b=c": "float"}}, ["--metadata", "a", "--metadata", "b"]),
    ({"evidence_columns": ["a", "b"]}, ["--evidence-columns", "a,b"]),
    ({"evidence_columns": []}, ["--evidence-columns", ""]),
    ({"metadata": []}, ["--no-metadata"]),
    ({"unescape_html": True, "rejects": Path("x")}, ["--unescape-html", "--rejects", "x"]),
    ({"memory_limit": 1 << 30, "threads": 2}, ["--memory-limit", "1GiB", "--threads", "2"]),
    ({"queries": "q.tsv#train", "end_token": "\\n"}, ["--queries", "q.tsv#train", "--end-token", "\\n"]),
    ({"title_prefix": "--", "aliases": None, "no_resume": False}, ["--title-prefix", "--"]),
    ({"vectors": "encoder:x", "vector_sample": 5}, ["--vectors", "encoder:x", "--vector-sample", "5"]),
]


@pytest.mark.parametrize(("keywords", "words"), OPTIONS)
def test_keywords_say_what_the_options_of_the_command_say(keywords: dict[str, Any], words: list[str]) -> None:
    if "type" in keywords:
        words = [*words, *(f"--type={column}={kind}" for column, kind in keywords["type"].items())]
        keywords = keywords | {"metadata": [*keywords["metadata"], "b=c"]}
        words += ["--metadata", "b=c"]
    said = build_command.make_context("build", ["titles", *words]).params
    for name in ("titles", "out", "as_json", "quiet", "debug"):
        del said[name]
    assert _wish(keywords) == build_wish(**said)
    assert _wish({"type": {"a": int, "b": str}}) == _wish({"type": ["a=int", "b=string"]})


def test_every_option_of_the_command_is_a_keyword_and_is_told() -> None:
    options = {one.opts[0].removeprefix("--").replace("-", "_") for one in build_command.params}
    own = options - {"titles", "json", "quiet", "debug"}
    assert own | {"source", "progress"} == set(signature(build_index).parameters)
    told = build_index.__doc__ or ""
    assert all(f"    {name}: " in told for name in own)
    assert "UNSET" not in told


def test_variables_of_the_command_say_nothing(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENRET_BUILD_TITLE_COLUMN", "name")
    monkeypatch.setenv("GENRET_BUILD_OUT", "elsewhere")
    build_index([{"title": "a"}], tmp_path / "it.index", tokenizer=tokenizer)
    titles = write_titles(tmp_path / "t.tsv", ["title", "a"])
    said = refusal(build_command, titles, "--tokenizer", tokenizer, code=1)
    assert "no column is called 'name'" in said


def test_an_iterator_is_streamed(tokenizer: Path, tmp_path: Path) -> None:
    class Row(dict[str, object]):
        """A dict that can be counted."""

    alive: weakref.WeakSet[Row] = weakref.WeakSet()
    most = 0

    def rows() -> Iterator[Row]:
        nonlocal most
        for number in range(40_000):
            row = Row(title=f"t{number}")
            alive.add(row)
            if not number % 1000:
                most = max(most, len(alive))
            yield row

    Row.__hash__ = object.__hash__  # type: ignore[assignment]
    built = build_index(rows(), tmp_path / "it.index", tokenizer=tokenizer, evidence="none")
    assert built.manifest.counts.entities == 40_000
    assert most <= 20_000


def test_rows_are_taken_in_the_callers_thread(tokenizer: Path, tmp_path: Path) -> None:
    """A cursor of sqlite3 refuses any other."""
    base = sqlite3.connect(":memory:")
    base.execute("create table names (title text)")
    base.executemany("insert into names values (?)", ((f"t{number}",) for number in range(12_000)))
    rows = ({"title": title} for (title,) in base.execute("select title from names"))
    built = build_index(rows, tmp_path / "it.index", tokenizer=tokenizer, evidence="none")
    assert built.manifest.counts.entities == 12_000


def test_endless_rows_that_are_bad_end_the_build(tokenizer: Path, tmp_path: Path) -> None:
    def forever(row: object) -> Iterator[object]:
        yield {"title": "a"}
        while True:
            yield row

    for row in (None, {"title": ""}):
        with pytest.raises(SourceError, match="reading stopped here"):
            build_index(forever(row), tmp_path / "it", tokenizer=tokenizer)
    assert not (tmp_path / "it").exists()


def test_an_error_of_the_rows_leaves_the_live_version(tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "it.index"
    before = build_index([{"title": "a"}], out, tokenizer=tokenizer)

    def broken(error: Exception) -> Iterator[dict[str, str]]:
        yield from ({"title": f"t{number}"} for number in range(11_000))
        raise error

    for error, told in (
        (ConnectionError("it is gone"), "the given generator: .* could be had: it is gone"),
        (ValueError("not mine"), "not mine"),
    ):
        with pytest.raises((SourceError, ValueError), match=told):
            build_index(broken(error), out, tokenizer=tokenizer)
    assert (out / "CURRENT").read_text().strip() == before.version
    assert sorted(path.name for path in out.iterdir()) == [".lock", "CURRENT", "versions"]
