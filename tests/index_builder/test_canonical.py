from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_builder.entity_writer import canonical

VALUES = {
    pa.string(): st.none() | st.text("aé𐀐", max_size=3),
    pa.int64(): st.none() | st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.none() | st.integers(0, 255),
    pa.uint16(): st.none() | st.integers(0, 65_535),
    pa.float64(): st.none() | st.floats(allow_nan=False),
    pa.bool_(): st.none() | st.booleans(),
    pa.list_(pa.field("item", pa.string(), nullable=False)): st.lists(st.text("ab", max_size=3), max_size=3),
}


def _written(array: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([canonical(array)], names=["x"])
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == array.to_pylist()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_equal_values_give_equal_bytes(kind: pa.DataType, data: st.DataObject) -> None:
    lists = st.lists(VALUES[kind], max_size=20)
    before, values, behind = data.draw(lists), data.draw(lists), data.draw(lists)
    once = pa.array(values, kind)
    inside = pa.array([*before, *values, *behind], kind).slice(len(before), len(values))
    taken = pa.array([*values, *before], kind).take(pa.array(range(len(values)), pa.int64()))
    assert len({_written(array) for array in (once, inside, taken)}) == 1


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_(), pa.string()])
def test_what_lies_under_a_null_is_not_written(kind: pa.DataType) -> None:
    values = [pa.scalar(text).cast(kind).as_py() for text in ("1", "0", "1")]
    hidden = pa.array(values, kind)
    validity = pa.array([True, False, None]).is_valid().buffers()[1]
    garbage = pa.Array.from_buffers(kind, 3, [validity, *hidden.buffers()[1:]])
    assert garbage.to_pylist() == [*values[:2], None]
    assert _written(garbage) == _written(pa.array([*values[:2], None], kind))
