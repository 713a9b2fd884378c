"""Damage to one file of a version, described so that it can be sent to another process and be repeated."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from genret.retrieval.index.small_files import digest_bytes

CURRENT, MANIFEST = "CURRENT", "manifest.json"
FLIP_MASKS = (0x01, 0x80, 0xFF)


class Kind(StrEnum):
    """What is done to a file."""

    FLIP = "flip"  # byte `at` xor `value`
    TRUNCATE = "truncate"  # to `at` bytes
    EXTEND = "extend"  # by `value` bytes of 0xA5
    ZERO = "zero"  # `value` bytes from `at`
    SPLICE = "splice"  # `value` bytes from `at` are replaced by as many from the file's begin
    PUT = "put"  # the bytes from `at` on are those whose hexadecimal digits are `text`
    SWAP = "swap"  # the file of the same name in the other version
    TEXT = "text"  # the content is `text`
    MISSING = "missing"
    DIRECTORY = "directory"
    DANGLING = "dangling"
    LOOP = "loop"
    PIPE = "pipe"


ODD_KINDS = (Kind.MISSING, Kind.DIRECTORY, Kind.DANGLING, Kind.LOOP, Kind.PIPE)


@dataclass(frozen=True, slots=True)
class Damage:
    """One way to damage one file."""

    file: str  # CURRENT, or a path relative to the version directory
    kind: Kind
    at: int = 0
    value: int = 0
    text: str = ""
    # Whether manifest, directory name and CURRENT are made to fit the damaged file, as a faulty builder or an
    # adversary would; otherwise digests find the damage.
    refit: bool = False

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Damage:
        document = json.loads(line)
        return cls(**{**document, "kind": Kind(document["kind"])})

    def content(self, sound: bytes, other: Mapping[str, bytes]) -> bytes:
        """Return what the file holds afterwards."""
        end = self.at + self.value
        match self.kind:
            case Kind.FLIP:
                return sound[: self.at] + bytes([sound[self.at] ^ self.value]) + sound[self.at + 1 :]
            case Kind.TRUNCATE:
                return sound[: self.at]
            case Kind.EXTEND:
                return sound + b"\xa5" * self.value
            case Kind.ZERO:
                return sound[: self.at] + bytes(len(sound[self.at : end])) + sound[end:]
            case Kind.SPLICE:
                return sound[: self.at] + sound[: len(sound[self.at : end])] + sound[end:]
            case Kind.PUT:
                put = bytes.fromhex(self.text)
                return sound[: self.at] + put + sound[self.at + len(put) :]
            case Kind.SWAP:
                return other[self.file]
            case Kind.TEXT:
                return self.text.encode("utf-8", errors="surrogatepass")
        raise ValueError(f"{self.kind} leaves no content")


def write_damaged(
    index: Path, sound: Mapping[str, bytes], other: Mapping[str, bytes], damage: Damage
) -> bool:
    """Write an index of one version, damaged, a file of `other` perhaps; return whether anything differs."""
    shutil.rmtree(index, ignore_errors=True)
    pointer = (digest_bytes(sound[MANIFEST]) + "\n").encode()
    files = {**sound}
    changed = damage.kind in ODD_KINDS
    if not changed:
        before = pointer if damage.file == CURRENT else sound[damage.file]
        content = damage.content(before, {**other, CURRENT: b"0" * 32 + b"\n"})
        changed = content != before
        if damage.file == CURRENT:
            pointer = content
        else:
            files[damage.file] = content
            if damage.refit:
                files[MANIFEST] = _refitted(files, damage)
                pointer = (digest_bytes(files[MANIFEST]) + "\n").encode()
    name = digest_bytes(files[MANIFEST]) if damage.refit else digest_bytes(sound[MANIFEST])
    folder = index / "versions" / name
    for relative, data in files.items():
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        (folder / relative).write_bytes(data)
    (index / CURRENT).write_bytes(pointer)
    if damage.kind in ODD_KINDS:
        _replace_by_odd(index / CURRENT if damage.file == CURRENT else folder / damage.file, damage.kind)
    return changed


def _refitted(files: Mapping[str, bytes], damage: Damage) -> bytes:
    if damage.file == MANIFEST:
        return files[MANIFEST]
    document = json.loads(files[MANIFEST])
    for entry in document["files"]:
        data = files[entry["name"]]
        entry.update(bytes=len(data), xxh3_128=digest_bytes(data))
    return (json.dumps(document, indent=1) + "\n").encode()


def _replace_by_odd(place: Path, kind: Kind) -> None:
    place.unlink()
    match kind:
        case Kind.DIRECTORY:
            place.mkdir()
        case Kind.DANGLING:
            place.symlink_to("nowhere")
        case Kind.LOOP:
            place.symlink_to(place.name)
        case Kind.PIPE:
            os.mkfifo(place)


def places_in(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything inside a document of JSON."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, inner in list(items):
        yield document, key
        if isinstance(inner, dict | list):
            yield from places_in(inner)


def sampled(sound: Mapping[str, bytes], number: int, seed: int, refit: bool = False) -> Iterator[Damage]:
    """Yield `number` random damages of content, spread over all files alike."""
    generator = random.Random(seed)
    names = [name for name in sound if not (refit and name == MANIFEST)]
    if not refit:
        names.append(CURRENT)
    for i in range(number):
        name = names[i % len(names)]
        size = 33 if name == CURRENT else len(sound[name])
        at = generator.randrange(size)
        length = min(1 << generator.randrange(12), size)
        kind = generator.choices(
            [Kind.FLIP, Kind.TRUNCATE, Kind.EXTEND, Kind.ZERO, Kind.SPLICE], [12, 1, 1, 3, 3]
        )[0]
        value = generator.randrange(1, 256) if kind is Kind.FLIP else length
        yield Damage(name, kind, at, value, refit=refit)


def every_flip(sound: Mapping[str, bytes], refit: bool = False) -> Iterator[Damage]:
    """Yield flips of every byte of every file, with each of `FLIP_MASKS`."""
    sizes = {name: len(data) for name, data in sound.items()}
    if refit:
        del sizes[MANIFEST]
    else:
        sizes[CURRENT] = 33
    for name, size in sizes.items():
        for at in range(size):
            for mask in FLIP_MASKS:
                yield Damage(name, Kind.FLIP, at, mask, refit=refit)


def every_odd(sound: Mapping[str, bytes], other: Mapping[str, bytes]) -> Iterator[Damage]:
    """Yield what can stand in the place of every file."""
    for name in (*sound, CURRENT):
        yield from (Damage(name, kind) for kind in ODD_KINDS)
        if name in other or name == CURRENT:
            yield Damage(name, Kind.SWAP)


def put_values(sound: Mapping[str, bytes], number: int, seed: int) -> Iterator[Damage]:
    """Yield `number` damages that put other values into all files alike, under a manifest that fits.

    A value of 1, 2, 4 or 8 bytes, or a run of up to 64 of them, becomes 0, -1, the largest or smallest
    number, one more or less, random, or that of another place. Some files are cut, grown or overwritten.
    """
    generator = random.Random(seed)
    rows = [name for name in sound if "/" in name]
    names = [name for name in sound if name not in (MANIFEST, *rows)]
    for i in range(number):
        name = [*names, generator.choice(rows)][i % (len(names) + 1)]
        if generator.randrange(8) == 0:
            yield from sampled({name: sound[name]}, 1, generator.getrandbits(32), refit=True)
            continue
        data, width = sound[name], generator.choice([1, 2, 4, 4, 4, 8])
        at = generator.randrange(len(data)) // width * width
        count = generator.choice([1, 1, 1, 2, 8, 64])
        places = range(at, at + width * count, width)
        put = b"".join(_other(data, place, width, generator) for place in places)
        yield Damage(name, Kind.PUT, at, text=put[: len(data) - at].hex(), refit=True)


def _other(data: bytes, at: int, width: int, generator: random.Random) -> bytes:
    """Return what stands in the place of a little-endian value of some bytes."""
    value, bits = int.from_bytes(data[at : at + width], "little"), 8 * width
    elsewhere = generator.randrange(max(len(data) - width, 1)) // width * width
    changed = generator.choice(
        [
            0,
            -1,
            1 << (bits - 1),
            (1 << (bits - 1)) - 1,
            value + 1,
            value - 1,
            generator.getrandbits(bits),
            generator.getrandbits(generator.randrange(1, bits)),
            int.from_bytes(data[elsewhere : elsewhere + width], "little"),
        ]
    )
    return (changed % (1 << bits)).to_bytes(width, "little")
