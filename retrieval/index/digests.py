"""XXH3-128 digests: they detect damage, not malice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

_CHUNK_BYTES = 1 << 22


def digest_bytes(data: Any) -> str:
    """Return the digest of a buffer as 32 hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def digest_file(path: Path) -> str:
    """Return the digest of a file, read in bounded memory."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
    return str(state.hexdigest())
