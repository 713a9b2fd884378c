"""Sources at addresses: copied by fsspec, gone on with where a copy was cut short."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from genret.index_builder.cli import build_command, update_command
from genret.retrieval.errors import MissingExtraError, SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources import remote_files
from genret.retrieval.sources.remote_files import fetched, shown_address
from tests.commands import refusal, succeed
from tests.index_fixtures import character_tokenizer, save_tokenizer

fsspec = pytest.importorskip("fsspec", reason="needs the extra remote")
pytest.importorskip("aiohttp", reason="needs the extra remote")

CONTENT = bytes(range(256)) * 20_000  # 5 MB


@dataclass
class Objects:
    """The objects of a server, and the bytes it sent."""

    content: bytes = CONTENT
    ranges: bool = True
    status: int = 200
    dies_after: int | None = None  # bytes of content in all, after which the next answer breaks off once
    tag: str = ""
    sent: int = 0
    begins: list[int] = field(default_factory=list)  # of the answers with content


class Handler(BaseHTTPRequestHandler):
    def __init__(self, objects: Objects, *arguments: Any) -> None:
        self.objects = objects
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, with_content: bool) -> None:
        mine = self.objects
        if mine.status != 200:
            self.send_error(mine.status)
            return
        begin, end, content = 0, len(mine.content), mine.content
        asked = self.headers.get("Range") if mine.ranges else None
        if asked:
            low, _, high = asked.removeprefix("bytes=").partition("-")
            begin, end = int(low), min(int(high) + 1 if high else end, end)
        self.send_response(206 if asked else 200)
        if mine.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", mine.tag or hashlib.md5(content).hexdigest())
        self.end_headers()
        if not with_content:
            return
        mine.begins.append(begin)
        room = end - begin
        if mine.dies_after is not None and mine.sent + room > mine.dies_after:
            room, mine.dies_after = max(mine.dies_after - mine.sent, 0), None
        mine.sent += room
        try:
            self.wfile.write(content[begin : begin + room])
        except OSError:  # the client has gone
            return
        self.close_connection = True


class Hub(Handler):
    """A hub of one dataset with one file."""

    def _answer(self, with_content: bool) -> None:
        if not self.path.startswith("/api/"):
            super()._answer(with_content)
            return
        size = len(self.objects.content)
        file = {"type": "file", "oid": "1", "size": size, "path": "data/a b.tsv"}
        found: Any = [file] if "/tree/" in self.path else {"id": "shop/names", "sha": "2"}
        if "/datasets/shop/names" in self.path:
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_error(404)


@contextmanager
def serving(objects: Objects, kind: type[Handler] = Handler) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, objects))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/titles.bin"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def copied(address: str, folder: Path) -> bytes:
    (path,) = fetched(address, folder, StepProgress())
    return path.read_bytes()


def test_a_dataset_of_the_hub_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Objects(), Hub) as address:
        hub = address.rpartition("/")[0]
        template = hub + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.hf_file_system.HfFileSystem.cachable", False)
        assert copied("hf://datasets/shop/names/data/a b.tsv", tmp_path) == CONTENT
        for name in ("names/data/b.tsv", "nobody/a.tsv"):
            with pytest.raises(SourceError, match=f"^hf://datasets/shop/{name}: there is no such object$"):
                copied(f"hf://datasets/shop/{name}", tmp_path)


@pytest.mark.parametrize("dies_after", [None, 0, 1_000_000, 3_500_000])
def test_a_copy_goes_on_behind_what_it_has(tmp_path: Path, dies_after: int | None) -> None:
    objects = Objects(dies_after=dies_after)
    with serving(objects) as address:
        assert copied(address, tmp_path) == CONTENT
        # What was sent twice is what a broken answer had of one request.
        assert objects.sent <= len(CONTENT) + 2 * 1_048_576 + 8192
        before = objects.sent
        assert copied(address, tmp_path) == CONTENT  # whole: nothing is asked for again
        assert objects.sent - before <= 8192


def test_a_killed_copy_goes_on_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    class Killing(StepProgress):
        def advance(self, done: int, note: str, *, tells_left: bool = False) -> None:
            if done > 3_000_000:
                raise Killed

    objects = Objects()
    with serving(objects) as address:
        with pytest.raises(Killed):
            fetched(address, tmp_path, Killing())
        before, objects.begins = objects.sent, []
        assert copied(address, tmp_path) == CONTENT
        assert objects.sent - before < len(CONTENT) - 2_000_000
        objects.content, objects.begins = CONTENT[::-1], []  # of the same size
        assert copied(address, tmp_path) == CONTENT[::-1]
        assert 0 in objects.begins


def test_without_ranges_a_copy_begins_anew(tmp_path: Path) -> None:
    objects = Objects(ranges=False, dies_after=2_000_000)
    with serving(objects) as address:
        assert copied(address, tmp_path) == CONTENT


@pytest.mark.parametrize(
    ("status", "said"), [(404, "there is no such object"), (403, "access is denied"), (500, "cannot be read")]
)
def test_errors_are_one_line_without_secrets(tmp_path: Path, status: int, said: str) -> None:
    with serving(Objects(status=status)) as address, pytest.raises(SourceError) as caught:
        copied(address.replace("//", "//ann:secret@") + "?sig=secret", tmp_path)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    assert shown_address("s3://key:word@b/x.tsv?sig=1#f") == "s3://b/x.tsv"
    with monkeypatch.context() as patch:
        patch.setattr(fsspec.core, "url_to_fs", missing)
        with pytest.raises(SourceError, match=r"s3://b/x: s3:// needs the package s3fs, .*pip install s3fs$"):
            fetched("s3://b/x", tmp_path, StepProgress())
        with pytest.raises(MissingExtraError, match=r"'aiohttp'.*\[remote\]"):
            fetched("https://b/x", tmp_path, StepProgress())
    with pytest.raises(SourceError, match=r"^odd://b/x: no such kind of address"):
        fetched("odd://b/x", tmp_path, StepProgress())
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"\[remote\]"):
        fetched("s3://b/x", tmp_path, StepProgress())


def test_builds_and_updates_read_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote_files, "_BLOCK_BYTES", 4)
    checkpoint = save_tokenizer(character_tokenizer("abcdefgh"), tmp_path / "checkpoint")
    memory = fsspec.filesystem("memory")
    files = {
        "part-2.tsv": "title\tkind\nb\ty\n",
        "part-1.tsv": "title\tkind\na\tx\n",
        "q.tsv": "query\ttitle\nbe\tb\n",
        "more.tsv": "title\tkind\nc\tz\n",
        "aliases.tsv": "alias\ttitle\naa\ta\n",
    }
    for name, text in files.items():
        memory.pipe(f"/shop/{name}", text.encode())
    common = ["memory://shop/part-*.tsv", "--tokenizer", checkpoint]
    further = ["--queries", "memory://shop/q.tsv", "--aliases", "memory://shop/aliases.tsv"]
    planned = succeed(build_command, *common, *further, "--dry-run")
    told = "memory:///shop/part-1.tsv: all of it is copied first, 15 bytes; so it is with --sample"
    assert told in planned.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    succeed(build_command, *common, *further, "--out", "it.index", "--quiet")
    with Index.open("it.index") as index:
        assert [index.entity(i).title for i in range(2)] == ["a", "b"]
        assert index.evidence.queries == 1
        names = [entry.name for entry in index.manifest.history[-1].sources]
    assert names[:2] == ["memory:///shop/part-1.tsv", "memory:///shop/part-2.tsv"]
    assert not (tmp_path / "it.index" / "work").exists()
    succeed(update_command, "it.index", "--add", "memory://shop/more.tsv", "--tokenizer", checkpoint)
    with Index.open("it.index") as index:
        assert index.num_entities == 3
    succeed(update_command, "it.index", "--queries", "memory://shop/q.tsv")
    assert not (tmp_path / "it.index" / "work").exists()

    memory.pipe("/shop/bad.tsv", b"title\tkind\nd\tx\nbad row\n")
    said = refusal(build_command, "memory://shop/bad.tsv", "--tokenizer", checkpoint, code=1)
    assert "memory://shop/bad.tsv" in said
    assert list((tmp_path / "bad.index" / "work" / "copies").glob("*/bad.tsv"))  # not to be copied again
    said = refusal(build_command, "memory://shop/none-*.tsv", "--tokenizer", checkpoint, code=1)
    assert said.endswith("Error: memory://shop/none-*.tsv: no object has such a name")
