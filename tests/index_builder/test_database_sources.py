"""Results of queries as sources: SQLite, and PostgreSQL where a server can be started."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import genret
from genret.index_builder.cli import build_command
from genret.retrieval.errors import InputError, MissingExtraError, SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.database_rows import query_result
from tests.commands import run, succeed
from tests.index_fixtures import character_tokenizer, save_tokenizer, write_titles

pytest.importorskip("adbc_driver_sqlite", reason="needs the extra sql")
pytest.importorskip("adbc_driver_postgresql", reason="needs the extra sql")

ROWS = [(i, f"title {'abc'[i % 3]} {i}", i / 2, None if i % 5 else "x|y") for i in range(3000)]
TABLE = "CREATE TABLE products (id INTEGER, name TEXT, price DOUBLE PRECISION, names TEXT)"
SQL = "SELECT id AS entity_id, name AS title, price, names AS aliases FROM products ORDER BY id"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_tokenizer(character_tokenizer("abcdefghilotxy 0123456789"), tmp_path / "checkpoint")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as database:
        database.execute(TABLE)
        database.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", ROWS)
        database.execute("CREATE TABLE mixed (title)")
        database.executemany("INSERT INTO mixed VALUES (?)", [*((i,) for i in range(2000)), ("text",)])
    return "sqlite:///shop.db"


def build(*arguments: object) -> None:
    succeed(build_command, *arguments, "--quiet", "--evidence", "none")


def check_refusal(said: str, *arguments: object, code: int = 1) -> None:
    """Check that a build is refused in one line, which holds no password."""
    result = run(build_command, *arguments, "--quiet", "--evidence", "none")
    assert result.exit_code == code, result.output
    assert re.search(said, result.stderr), result.stderr
    assert code == 2 or len(result.stderr.splitlines()) == 1
    assert "secret" not in result.stderr


def check_rows(folder: Path) -> None:
    with Index.open(folder) as index:
        assert index.num_entities == len(ROWS)
        assert index.metadata_types == {"price": "float"}
        for number, _, price, names in ROWS[::97]:
            at = int(index.entities.find([str(number)])[0])
            entity = index.entity(at)
            assert entity.title == ROWS[number][1]
            assert list(entity.aliases) == ([] if names is None else names.split("|"))
            assert entity.metadata["price"] == price


def test_rows_of_sqlite_are_built(tmp_path: Path, shop: str, checkpoint: Path) -> None:
    build(shop, "--sql", SQL, "--tokenizer", checkpoint)
    check_rows(tmp_path / "shop.index")
    absolute = f"sqlite:///{tmp_path / 'shop.db'}"
    options: dict[str, Any] = {"tokenizer": checkpoint, "evidence": "none", "progress": False}
    summary = genret.build_index(absolute, "python.index", sql=SQL, **options)
    check_rows(summary.index)
    assert [source.name for source in summary.manifest.history[-1].sources] == [absolute]
    assert not (summary.index / "work").exists()
    plan = genret.build_index(shop, "none.index", sql=SQL, dry_run=True, **options)
    assert plan.entities == len(ROWS)
    assert not Path("none.index").exists()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nope FROM products", "no such column: nope"),
        ("DELETE FROM products", "readonly database"),
        ("nonsense", "syntax error"),
        ("SELECT title FROM mixed", "Type mismatch in column 0: .*; SQLite columns may mix types: CAST"),
        ("SELECT name FROM products", "no column is called 'title'; the columns are 'name'"),
    ],
)
def test_what_the_database_refuses_is_told_in_one_line(
    shop: str, checkpoint: Path, sql: str, said: str
) -> None:
    told = f"^Error: sqlite:///shop.db.*{said}"
    check_refusal(told, shop, "--sql", sql, "--tokenizer", checkpoint, "--out", "it.index")


def test_what_does_not_go_together_is_refused(
    tmp_path: Path, shop: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = write_titles(tmp_path / "t.tsv", ["a"])
    common = ["--tokenizer", checkpoint, "--out", "it.index"]
    for sources, further, said in (
        ([shop], [], "a database needs a query; say which with --sql"),
        ([titles], ["--sql", SQL], "expected one address, sqlite:///shop.db or postgresql://"),
        ([shop, "postgresql://ann:secret@h/b"], ["--sql", SQL], "postgresql://h/b"),
    ):
        check_refusal(said, *sources, *common, *further, code=2)
    with pytest.raises(SourceError, match=r"no such file: none\.db; an absolute path has four slashes"):
        query_result("sqlite:///none.db", SQL, tmp_path, StepProgress())
    with pytest.raises(SourceError, match=r"^postgresql://127.0.0.1:1/b: .*Connection refused") as caught:
        query_result("postgresql://ann:secret@127.0.0.1:1/b", SQL, tmp_path, StepProgress())
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="sql"):
        genret.build_index([{"title": "a"}], "it.index", sql=SQL, tokenizer=checkpoint, progress=False)
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    with pytest.raises(MissingExtraError, match=r"\[sql\]"):
        query_result(shop, SQL, tmp_path, StepProgress())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a PostgreSQL server on a socket; as another user, since it refuses root."""
    programs = [shutil.which("initdb"), shutil.which("pg_ctl"), shutil.which("psql")]
    if None in programs:
        pytest.skip("needs PostgreSQL: initdb, pg_ctl and psql")
    initdb, pg_ctl, psql = map(str, programs)
    folder = tmp_path_factory.mktemp("pg")
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        name = next((n for n in ("postgres", "nobody") if n in {u.pw_name for u in pwd.getpwall()}), None)
        if name is None:
            pytest.skip("needs a user other than root to run PostgreSQL")
        user = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
        os.chown(folder, pwd.getpwnam(name).pw_uid, -1)
        shared = Path(tempfile.gettempdir())
        for parent in (folder, *folder.parents):
            if shared not in parent.parents:
                break
            parent.chmod(0o755)
    data = folder / "data"
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, **user}
    subprocess.run([initdb, "-D", data, "-U", "ann", "-A", "trust", "--no-sync"], **quiet)
    listen = f"-k {folder} -c listen_addresses='' -c fsync=off"
    subprocess.run([pg_ctl, "-D", data, "-w", "-o", listen, "-l", folder / "log", "start"], **quiet)
    try:
        script = (
            TABLE
            + "; INSERT INTO products VALUES "
            + ", ".join(f"({i}, '{t}', {p}, {'NULL' if n is None else repr(n)})" for i, t, p, n in ROWS)
        )
        subprocess.run(
            [psql, "-h", folder, "-U", "ann", "-d", "postgres", "-q"], input=script.encode(), **quiet
        )
        yield f"postgresql://ann:secret@/postgres?host={folder}"
    finally:
        subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], **quiet)


def test_rows_of_postgresql_are_built(
    tmp_path: Path, server: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build(server, "--sql", SQL, "--tokenizer", checkpoint, "--out", "it.index")
    check_rows(tmp_path / "it.index")
    assert "secret" not in (tmp_path / "it.index" / "CURRENT").read_text()
    with Index.open("it.index") as index:
        assert [one.name for one in index.manifest.history[-1].sources] == ["postgresql:///postgres"]
    for sql, said in (
        ("DELETE FROM products RETURNING id AS title", "read-only transaction"),
        ("SELECT nope FROM products", "does not exist"),
        ("SELECT name AS title, ARRAY[id] AS ids FROM products", "column 'ids' is of type list"),
    ):
        check_refusal(said, server, "--sql", sql, "--tokenizer", checkpoint, "--out", "it.index")
    other = (
        "SELECT name AS title, price::numeric(9, 2) AS p, now() AS t, '{\"a\": 1}'::jsonb AS j FROM products"
    )
    build(server, "--sql", other, "--tokenizer", checkpoint, "--out", "other.index")
