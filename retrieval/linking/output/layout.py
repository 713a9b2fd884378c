"""Names in the output folder of a run.

    OUT/part-000012.parquet      the rows of shard 12 (or .jsonl)
    OUT/_shards/000012.json      its record, written after the part
    OUT/_run.json                what the run is about: written first
    OUT/_summary.json            totals: there when the run is complete
    OUT/.lock                    held by the run that writes; the system releases it when that process ends
    OUT/.NAME.HOST.PID.tmp       a file that is being written

Readers of folders of Parquet (Arrow, DuckDB, Spark) leave out names that begin with "." or "_".
"""

from __future__ import annotations

import re
from pathlib import Path

RUN_FILE = "_run.json"
SUMMARY_FILE = "_summary.json"
RECORDS_DIR = "_shards"
LOCK_FILE = ".lock"
PARTS_SUFFIX = ".parts"

_OURS = re.compile(
    r"part-\d{6,}\.(parquet|jsonl)|_run\.json|_summary\.json|_shards|\.lock"
    r"|\.(part-\d{6,}\.(parquet|jsonl)|_run\.json|_summary\.json)\..+\.\d+\.tmp"
)
_RECORDS = re.compile(r"\d{6,}\.json|\.\d{6,}\.json\..+\.\d+\.tmp")


def part_name(shard: int, output_format: str) -> str:
    """Return the name of a shard's part file."""
    return f"part-{shard:06d}.{output_format}"


def record_file(folder: Path, shard: int) -> Path:
    """Return where a shard's record is."""
    return folder / RECORDS_DIR / f"{shard:06d}.json"


def is_ours(name: str) -> bool:
    """Say whether a run writes files of this name into its folder."""
    return _OURS.fullmatch(name) is not None


def is_record(name: str) -> bool:
    """Say whether a run writes files of this name into the folder of its records."""
    return _RECORDS.fullmatch(name) is not None
