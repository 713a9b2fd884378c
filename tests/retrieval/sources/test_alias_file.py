from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import SourceError
from genret.retrieval.sources import alias_file
from genret.retrieval.sources.alias_file import AliasFile, key_hash
from genret.retrieval.sources.records import Rejects
from genret.retrieval.sources.title_source import TitleSource
from tests.catalogue_files import lenient, read_all

names = st.sampled_from(["a", "b", "c", "d", "é", "x y"])


def known(keys: list[str]) -> np.ndarray:
    return np.sort(np.array([key_hash(key) for key in keys], dtype=np.uint64))


@lenient(max_examples=40)
@given(
    titles=st.lists(names, min_size=1, max_size=6, unique=True),
    pairs=st.lists(st.tuples(names, names), min_size=1, max_size=20),
    by_id=st.booleans(),
    size=st.integers(1, 4),
)
def test_join_equals_a_dictionary(
    tmp_path: Path, titles: list[str], pairs: list[tuple[str, str]], by_id: bool, size: int
) -> None:
    source_file, pairs_file = tmp_path / "c.tsv", tmp_path / "aliases.tsv"
    # The id of an entity is the title of another, so that a join by the wrong one shows.
    ids = titles[1:] + titles[:1]
    rows = [f"{i}\t{t}\town|{t}" for i, t in zip(ids, titles, strict=True)]
    source_file.write_text("\n".join(["entity_id\ttitle\taliases", *rows]) + "\n")
    key = "Entity_ID" if by_id else "title"
    pairs_file.write_text("\n".join([f"{key}\tother\tAlias", *(f"{k}\t-\t{a}" for k, a in pairs)]) + "\n")
    wanted = defaultdict(list)
    for k, a in pairs:
        wanted[k].append(a)
    aliases = AliasFile(pairs_file)
    assert aliases.by_id == by_id
    assert len(aliases._hashes) == len(pairs)
    with TitleSource(source_file, aliases=aliases) as source:
        records, rejects = read_all(source, size)
        keys = ids if by_id else titles
        aliases.reject_unknown(known(keys), rejects, file=1)
        assert source.entries()[-1].name == "aliases.tsv"
        assert source.names == (str(source_file), str(pairs_file))
    for record, k, t in zip(records, keys, titles, strict=True):
        assert record.aliases == tuple(dict.fromkeys(a for a in ("own", *wanted[k]) if a != t))
    lines = [line for line, (k, _) in enumerate(pairs, 2) if k not in keys]
    assert [(row.file, row.line, row.reason) for row in rejects.rows] == [
        (1, line, "alias of an unknown entity") for line in lines
    ]


def test_keys_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias_file, "key_hash", lambda key: 7)
    (tmp_path / "c.txt").write_text("a\nb\n")
    (tmp_path / "aliases.tsv").write_text("title\talias\na\tA\nb\tB\n")
    with TitleSource(tmp_path / "c.txt", aliases=AliasFile(tmp_path / "aliases.tsv")) as source:
        assert [record.aliases for record in read_all(source)[0]] == [("A",), ("B",)]


def test_other_formats_hold_aliases_too(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("entity_id\ttitle\n1\ta\n2\tb\n")
    jsonl, parquet = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    jsonl.write_text('{"entity_id": 1, "alias": "A"}\n{"entity_id": 2, "alias": ["B", "e\\u0301"]}\n')
    pq.write_table(
        pa.table({"entity_id": pa.array([1, 2, 2], pa.int64()), "alias": ["A", "B", "é"]}), str(parquet)
    )
    for file in (jsonl, parquet):
        with TitleSource(tmp_path / "c.tsv", aliases=AliasFile(file)) as source:
            assert [record.aliases for record in read_all(source)[0]] == [("A",), ("B", "é")]


def test_bad_rows_and_unknown_entities_are_reported_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a\n")
    file = tmp_path / "aliases.tsv"
    file.write_bytes(b"title\talias\na\tA\nb\tB\n\tC\na\t\na\tx\ty\na\t\xff\n")
    aliases = AliasFile(file)
    with TitleSource(tmp_path / "c.txt", aliases=aliases) as source:
        records, rejects = read_all(source)
    aliases.reject_unknown(known(["a"]), rejects, file=1)
    assert records[0].aliases == ("A",)
    assert rejects.report().splitlines()[1:] == [
        f"  {file}, line 3: alias of an unknown entity (title 'b'): 'B'",
        f"  {file}, line 4: no title: '\\tC'",
        f"  {file}, line 5: no alias: 'a\\t'",
        f"  {file}, line 6: too many tabs (expected 2 fields, got 3): 'a\\tx\\ty'",
        f"  {file}, line 7: not valid UTF-8 (byte 3): 'a\\t\\xff'",
    ]


def test_without_any_known_entity_all_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "aliases.tsv").write_text("title\talias\nb\tB\na\tA\n")
    aliases = AliasFile(tmp_path / "aliases.tsv")
    rejects = Rejects("c", 10)
    aliases.reject_unknown(np.empty(0, dtype=np.uint64), rejects, file=0)
    assert [row.line for row in rejects.rows] == [2, 3]


def test_memory_is_what_is_said(tmp_path: Path) -> None:
    pairs = [(f"Q{i % 700}", f"alias number {i}") for i in range(5000)]
    file = tmp_path / "aliases.tsv"
    file.write_text("title\talias\n" + "".join(f"{k}\t{a}\n" for k, a in pairs))
    aliases = AliasFile(file)
    arrays = (aliases._hashes, aliases._lines, aliases._keys, aliases._aliases)
    texts = sum(len(k) + len(a) for k, a in pairs)
    assert sum(array.nbytes for array in arrays) <= 32.25 * len(pairs) + texts + 64


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("name\talias\nx\ty\n", "needs the column 'alias' and one of 'entity_id' and 'title'"),
        ("title\tother\nx\ty\n", "the columns are 'title', 'other'"),
        ("a\tb\n", "none of its fields is 'entity_id' or 'title' or 'alias'; expected a header"),
        ("", "the file is empty"),
        ("entity_id\talias\nx\ty\n", "the aliases name entities by entity_id, but the source has no ids"),
    ],
)
def test_unusable_files(tmp_path: Path, data: str, message: str) -> None:
    (tmp_path / "c.txt").write_text("a\n")
    (tmp_path / "aliases.tsv").write_text(data)
    with pytest.raises(SourceError, match=message):
        TitleSource(tmp_path / "c.txt", aliases=AliasFile(tmp_path / "aliases.tsv"))


def test_standard_input_is_no_file_of_aliases() -> None:
    with pytest.raises(SourceError, match="must be a regular file"):
        AliasFile("-")


def test_html_entities_are_resolved_in_both_files_or_in_neither(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("AT&amp;T\n")
    file = tmp_path / "aliases.tsv"
    file.write_text("title\talias\nAT&amp;T\tMa Bell &#38; Co\n")
    for unescape, alias in ((True, "Ma Bell & Co"), (False, "Ma Bell &#38; Co")):
        aliases = AliasFile(file, unescape_html=unescape)
        with TitleSource(tmp_path / "c.txt", aliases=aliases, unescape_html=unescape) as source:
            records, rejects = read_all(source)
            aliases.reject_unknown(known([records[0].title]), rejects, file=1)
        assert records[0].aliases == (alias,)
        assert not rejects.rows
