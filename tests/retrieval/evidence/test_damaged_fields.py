"""Files of fields that are not sound: refused by name, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import IndexFormatError
from genret.retrieval.evidence import field as field_module
from genret.retrieval.evidence.field import Field, field_schema, query_blocks, text_blocks, write_blocks
from tests.evidence_fixtures import look_up, made_up_texts

Columns = dict[str, Any]
_NUM_ENTITIES = 30
_PAST = [(2 * entity, [(f"query {entity}", 1), ("other", entity + 1)]) for entity in range(12)]


def _texts_file(path: Path) -> bytes:
    owner = np.sort(np.arange(20) * 7 % 30)
    list(write_blocks(path, text_blocks([(owner, made_up_texts(20, seed=1))]), False))
    return path.read_bytes()


def _queries_file(path: Path) -> bytes:
    list(write_blocks(path, query_blocks([(np.array([entity]), [mine]) for entity, mine in _PAST]), True))
    return path.read_bytes()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_module, "BLOCK_TEXTS", 8)


@pytest.fixture
def texts_file(tmp_path: Path, small_blocks: None) -> bytes:
    """Three blocks."""
    return _texts_file(tmp_path / "texts.arrow")


@pytest.fixture
def queries_file(tmp_path: Path, small_blocks: None) -> bytes:
    """Two blocks."""
    return _queries_file(tmp_path / "past.arrow")


@pytest.fixture(scope="module", params=[False, True], ids=["texts", "queries"])
def one_block(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bool]:
    """One block of real size, and whether it has past queries."""
    folder = tmp_path_factory.mktemp("one")
    make = _queries_file if request.param else _texts_file
    return make(folder / "it.arrow"), request.param


def _blocks(data: bytes) -> list[Columns]:
    reader = pa.ipc.open_file(pa.BufferReader(data))
    return [reader.get_batch(i).to_pydict() for i in range(reader.num_record_batches)]


def _file(blocks: list[Columns], has_queries: bool, schema: pa.Schema | None = None) -> bytes:
    """Write blocks as they are: nothing looks at what stands in them."""
    declared = schema or field_schema(has_queries)
    # pyarrow refuses nulls where there may be none, unless they come in as if they were allowed.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, declared) as writer:
        for block in blocks:
            arrays = [_as(pa.array(block[field.name], _open(field.type)), field.type) for field in declared]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=declared))
    return sink.getvalue().to_pybytes()


def _open(kind: pa.DataType) -> pa.DataType:
    """Return a type whose items may be null."""
    if pa.types.is_large_list(kind):
        return pa.large_list(_open(kind.value_type))
    return pa.list_(_open(kind.value_type)) if pa.types.is_list(kind) else kind


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same buffers under another type."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        child = _as(array.values, kind.value_type)
        return pa.Array.from_buffers(
            kind, len(array), array.buffers()[:2], array.null_count, children=[child]
        )
    return array


def _read(data: bytes, has_queries: bool = False, num_entities: int = _NUM_ENTITIES) -> Field:
    return Field.read(pa.py_buffer(data), "it.arrow", num_entities, has_queries)


def test_a_rewritten_file_is_sound(texts_file: bytes, queries_file: bytes) -> None:
    assert _read(_file(_blocks(texts_file), False)).num_texts == 20
    field = _read(_file(_blocks(queries_file), True), True)
    assert list(field.all_queries()) == _PAST


Change = Callable[[list[Columns]], object]


def _set(name: str, place: int, value: object, block: int = 0) -> Change:
    return lambda blocks: blocks[block][name][0].__setitem__(place, value)


def _grow(name: str, value: object, block: int = 0) -> Change:
    return lambda blocks: blocks[block][name][0].append(value)


def _shrink(name: str) -> Change:
    return lambda blocks: blocks[0][name][0].pop()


def _replace(name: str, value: object, block: int = 0) -> Change:
    return lambda blocks: blocks[block][name].__setitem__(0, value)


def _two_rows(blocks: list[Columns]) -> None:
    for column in blocks[0].values():
        column.append(column[0])


def _no_rows(blocks: list[Columns]) -> None:
    for column in blocks[0].values():
        column.clear()


def _no_queries(blocks: list[Columns]) -> None:
    blocks[0]["queries"][0][0] = blocks[0]["counts"][0][0] = []


def _swapped(blocks: list[Columns]) -> None:
    blocks[0], blocks[-1] = blocks[-1], blocks[0]


def _without_owners(blocks: list[Columns]) -> None:
    for block in blocks:
        block["owner"][0] = None


_OF_LISTS = [
    change
    for kind in ("words", "letters")
    for change in (
        pytest.param(_set(f"{kind}_begin", -1, 1_000_000), id=f"{kind}: the last list ends outside"),
        pytest.param(_set(f"{kind}_begin", -1, 1), id=f"{kind}: the last list ends before it begins"),
        pytest.param(_set(f"{kind}_begin", 1, 4_000_000_000), id=f"{kind}: begin falls"),
        pytest.param(_set(f"{kind}_begin", 0, 1), id=f"{kind}: the first list begins late"),
        pytest.param(_grow(f"{kind}_begin", 1_000_000), id=f"{kind}: one begin too many"),
        pytest.param(_shrink(f"{kind}_begin"), id=f"{kind}: one begin too few"),
        pytest.param(_replace(f"{kind}_begin", []), id=f"{kind}: no begin"),
        pytest.param(_replace(f"{kind}_begin", None), id=f"{kind}: null for begin"),
        pytest.param(_set(f"{kind}_begin", 1, None), id=f"{kind}: a null in begin"),
        pytest.param(_set(f"{kind}_term", 0, 4_294_967_295), id=f"{kind}: terms fall"),
        pytest.param(_grow(f"{kind}_term", 4_294_967_295), id=f"{kind}: one term too many"),
        pytest.param(_replace(f"{kind}_term", None), id=f"{kind}: null for terms"),
        pytest.param(_set(f"{kind}_term", 1, None), id=f"{kind}: a null in terms"),
        pytest.param(_grow(f"{kind}_text", 0), id=f"{kind}: one place too many"),
        pytest.param(_shrink(f"{kind}_text"), id=f"{kind}: one place too few"),
        pytest.param(_replace(f"{kind}_text", None), id=f"{kind}: null for places"),
        pytest.param(_set(f"{kind}_text", 1, None), id=f"{kind}: a null in places"),
        pytest.param(_replace(f"{kind}_length", []), id=f"{kind}: no lengths"),
        pytest.param(_grow(f"{kind}_length", 1), id=f"{kind}: one length too many"),
        pytest.param(_shrink(f"{kind}_length"), id=f"{kind}: one length too few"),
        pytest.param(_replace(f"{kind}_length", None), id=f"{kind}: null for lengths"),
        pytest.param(_set(f"{kind}_length", 0, None), id=f"{kind}: a null in lengths"),
    )
]
_OF_OWNERS = [
    pytest.param(_set("owner", -1, 30, block=-1), id="an owner outside"),
    pytest.param(_set("owner", 0, -1), id="an owner below 0"),
    pytest.param(_set("owner", 1, 29), id="owners fall"),
    pytest.param(_grow("owner", 29, block=-1), id="one owner too many"),
    pytest.param(_shrink("owner"), id="one owner too few"),
    pytest.param(_replace("owner", None, block=-1), id="owners fall where a block has none"),
    pytest.param(_set("owner", 1, None), id="a null in owners"),
    pytest.param(_two_rows, id="two rows in a batch"),
    pytest.param(_no_rows, id="no row in a batch"),
    pytest.param(_swapped, id="a short block in front"),
]


@pytest.mark.parametrize("damage", [*_OF_LISTS, *_OF_OWNERS])
def test_what_does_not_fit_is_refused(texts_file: bytes, damage: Change) -> None:
    blocks = _blocks(texts_file)
    damage(blocks)
    with pytest.raises(IndexFormatError, match=r"it\.arrow: "):
        _read(_file(blocks, False))


def test_more_texts_than_entities_have_owners(texts_file: bytes) -> None:
    blocks = _blocks(texts_file)
    _without_owners(blocks)
    data = _file(blocks, False)
    assert _read(data, num_entities=20).owner is None
    with pytest.raises(IndexFormatError, match="20 texts of 19 entities"):
        _read(data, num_entities=19)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_replace("queries", None), id="null for queries"),
        pytest.param(_replace("counts", None), id="null for counts"),
        pytest.param(_set("queries", 0, None), id="a null of an entity"),
        pytest.param(_set("counts", 0, None), id="a null of an entity's counts"),
        pytest.param(_set("queries", 0, ["a", None]), id="a null query"),
        pytest.param(_set("counts", 0, [1, None]), id="a null count"),
        pytest.param(_set("counts", 0, [1]), id="one count too few"),
        pytest.param(_set("counts", 0, [1, 2, 3]), id="one count too many"),
        pytest.param(_set("counts", 0, [1, 0]), id="a count of 0"),
        pytest.param(_set("counts", 0, [1, -5]), id="a negative count"),
        pytest.param(_shrink("queries"), id="one entity too few"),
        pytest.param(_grow("queries", ["a"]), id="one entity too many"),
        pytest.param(_no_queries, id="an entity without any query"),
        *_OF_LISTS,
    ],
)
def test_past_queries_that_do_not_fit_are_refused(queries_file: bytes, damage: Change) -> None:
    blocks = _blocks(queries_file)
    damage(blocks)
    with pytest.raises(IndexFormatError, match=r"it\.arrow: "):
        _read(_file(blocks, True), True)


def test_other_columns_are_refused(texts_file: bytes, queries_file: bytes) -> None:
    for data, has_queries in ((texts_file, True), (queries_file, False)):
        with pytest.raises(IndexFormatError, match="expected the columns"):
            _read(data, has_queries)
    table = pa.table({"other": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(IndexFormatError, match="expected the columns"):
        _read(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"x" * 1000])
def test_what_is_no_arrow_file_is_refused(data: bytes) -> None:
    with pytest.raises(IndexFormatError, match="not a readable Arrow file"):
        _read(data)


def _use(field: Field) -> None:
    """Use everything of a field that was accepted: whatever it holds, nothing crashes."""
    for query in ("the old town of the king", "query 3", "other"):
        lookups = look_up(field, query)
        field.propose(lookups, 5, None)
        field.propose(lookups, 5, np.ones(_NUM_ENTITIES, np.bool_))
        field.scores_of(lookups, np.arange(_NUM_ENTITIES))
    list(field.all_queries())


@pytest.mark.parametrize("kind", ["words", "letters"])
def test_a_place_outside_of_its_block_is_never_proposed(one_block: tuple[bytes, bool], kind: str) -> None:
    data, has_queries = one_block
    blocks = _blocks(data)
    places = blocks[0][f"{kind}_text"][0]
    places[:] = [65_535 - place for place in places]
    field = _read(_file(blocks, has_queries), has_queries)
    _use(field)
    assert all(owner < _NUM_ENTITIES for owner in field.propose(look_up(field, "the old query 3"), 99, None))


@pytest.mark.fault
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_bytes_are_refused_or_harmless(
    one_block: tuple[bytes, bool], data: st.DataObject
) -> None:
    sound, has_queries = one_block
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        field = _read(bytes(damaged), has_queries)
    except IndexFormatError:
        return
    _use(field)


@pytest.mark.fault
def test_a_file_cut_anywhere_is_refused(one_block: tuple[bytes, bool]) -> None:
    sound, has_queries = one_block
    for length in range(0, len(sound) - 1, max(len(sound) // 97, 1)):
        with pytest.raises(IndexFormatError):
            _read(sound[:length], has_queries)
