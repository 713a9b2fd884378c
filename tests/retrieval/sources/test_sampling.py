"""Samples of sources: stretches of whole records, spread over all files, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from genret.retrieval.sources.memory_rows import MemoryRows
from genret.retrieval.sources.records import Rejects
from genret.retrieval.sources.title_source import RowSample, TitleSource
from tests.catalogue_files import COMPRESSIONS, FORMATS, Entity, lenient, write_catalogue

# Quoted fields of CSV span lines and hold what looks like fields.
TEXTS = st.sampled_from(
    ["plain", "a, b", 'the "big" one', "one\ntwo", 'so "x, y"\n"then", z', "\u00fc" * 30, '5" disk,']
)
RECORDS = 2000


@lenient(max_examples=40, phases=[Phase.explicit, Phase.generate])
@example(["plain"], "parquet", "", 2, 1)  # the middle lies between the files
@given(
    st.lists(TEXTS, min_size=1, max_size=8),
    st.sampled_from(FORMATS),
    st.sampled_from(COMPRESSIONS),
    st.integers(1, 3),
    st.integers(1, 200),
)
def test_stretches_hold_whole_records_of_all_files(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    kind: str,
    compression: str,
    files: int,
    wanted: int,
) -> None:
    folder = tmp_path_factory.mktemp("sampled")
    if kind == "tsv":  # without quoting
        texts = [" ".join(text.split()) for text in texts]
    entities: list[Entity] = [
        (f"Q{i}", f"{texts[i % len(texts)]} {i}", (), (texts[i % len(texts)],)) for i in range(RECORDS)
    ]
    step = -(-RECORDS // files)
    paths: list[str | Path] = [
        write_catalogue(folder, f"{n}.{kind}", entities[n * step : (n + 1) * step], ["note"], compression)
        for n in range(files)
    ]

    def records(sample: RowSample | None) -> tuple[dict[str | None, object], float | None]:
        rejects = Rejects("", 0)
        with TitleSource(paths, sample=sample) as source:
            found = [record for batch in source.batches(64, rejects) for record in batch.records]
            assert not rejects.rows
            assert len({record.entity_id for record in found}) == len(found) == source.records_read
            told = {record.entity_id: (record.title, record.aliases, record.metadata) for record in found}
            return told, source.estimated_records

    every, told = records(None)
    assert told is None
    assert len(every) == RECORDS
    assert records(RowSample(wanted, RECORDS * 20)) == (every, None)  # too small a source for a sample
    some, estimate = records(RowSample(wanted, 0))
    assert some.items() <= every.items()
    assert estimate is not None
    if kind == "parquet":
        assert estimate == RECORDS
        assert min(wanted, 40) <= len(some) <= wanted + 40
        return
    assert some
    if not compression:  # of what is compressed there are as many stretches as blocks
        assert len(some) <= 4 * wanted + 40 * 20
    # All texts are repeated all over the file, so a few repetitions have their mean.
    if len(some) > 20 * len(texts):
        assert estimate == pytest.approx(RECORDS, rel=0.35)


def test_stretches_of_a_long_file_lie_all_over_it(tmp_path: Path) -> None:
    file = tmp_path / "titles.tsv"
    file.write_text("title\n" + "".join(f"title {i:06d}\n" for i in range(400_000)))
    with TitleSource(file, sample=RowSample(2000, 100_000)) as source:
        batches = source.batches(500, Rejects("", 0))
        numbers = [int(record.title[6:]) for batch in batches for record in batch.records]
        assert source.estimated_records == pytest.approx(400_000, rel=1e-3)
    assert sorted(numbers) == numbers
    assert 1900 < len(numbers) < 2100
    assert [sum(i * 10_000 <= n < (i + 1) * 10_000 for n in numbers) > 40 for i in range(40)] == [True] * 40


def test_pipes_and_lists_are_read_whole(tmp_path: Path) -> None:
    rows = MemoryRows([{"title": f"t{i}"} for i in range(100)])
    with TitleSource([rows], sample=RowSample(1, 0)) as source:
        assert sum(len(batch.records) for batch in source.batches(64, Rejects("", 0))) == 100
        assert source.estimated_records is None
