"""Token files: what a line may be, what is refused without showing it, and how tokens are compared."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from service.security import bearer_tokens as tokens_module
from service.security.bearer_tokens import Scope, TokenSet, line_of, new_token, parse_tokens, read_token_file
from service.security.watched_files import WatchedFiles

A, B, C = "a-token-of-16-ch", "b-token-of-16-ch", "c-token-of-16-ch"


def parse(*lines: str) -> TokenSet:
    return parse_tokens(lines, "FILE")


def scope_of(tokens: TokenSet, presented: str) -> Scope | None:
    found = tokens.find(presented)
    return None if found is None else found.scope


def test_lines_are_scopes_with_tokens_or_digests() -> None:
    digest = hashlib.sha256(B.encode()).hexdigest()
    tokens = parse("# a comment", "", f"read {A}", f"  admin\tsha256:{digest.upper()}  \r", "   # another")
    assert scope_of(tokens, A) is Scope.READ
    assert scope_of(tokens, B) is Scope.ADMIN
    for stranger in ("", C, A[:-1], A + "x", A.upper(), digest, f"sha256:{digest}"):
        assert scope_of(tokens, stranger) is None


def test_a_fresh_token_is_accepted_by_its_line() -> None:
    token = new_token()
    line = line_of(Scope.ADMIN, token)
    assert token not in line
    assert scope_of(parse(line), token) is Scope.ADMIN
    assert len({new_token() for _ in range(100)}) == 100


def test_two_tokens_of_a_scope_may_be_live() -> None:
    tokens = parse(f"read {A}", f"read {B}", f"admin {C}", line_of(Scope.ADMIN, new_token()))
    assert [scope_of(tokens, token) for token in (A, B, C)] == [Scope.READ, Scope.READ, Scope.ADMIN]


SECRET = "sEcReT-oF-tHe-OpErAtOr"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# nothing but a comment"], "FILE holds no token"),
        ([], "FILE holds no token"),
        ([SECRET], "line 1: expected a scope first"),
        ([f"write {SECRET}"], "line 1: expected a scope first"),
        ([f"READ {SECRET}"], "line 1: expected a scope first"),
        (["", "# x", "read"], "line 3: expected one token after the scope, without blanks; 0 fields"),
        ([f"read {SECRET} {SECRET}"], "line 1: expected one token after the scope"),
        ([f"read {SECRET} # mine"], "line 1: expected one token after the scope"),
        (["read fifteen-letters"], "line 1: a token must have 16 to 512 characters, this one has 15"),
        (["read " + SECRET * 40], "line 1: a token must have 16 to 512 characters"),
        ([f"read {SECRET}\u00e9"], "line 1: a token must be of printable ASCII"),
        ([f"read {SECRET}\x07"], "line 1: a token must be of printable ASCII"),
        ([f"read sha256:{SECRET}"], "line 1: expected 64 hexadecimal digits after sha256:"),
        ([f"read sha256:{'0' * 63}"], "line 1: expected 64 hexadecimal digits after sha256:, got 63"),
        ([f"read {SECRET}", f"admin {SECRET}"], "line 2: the same token as in line 1"),
        (
            [f"read {SECRET}", line_of(Scope.READ, SECRET)],
            "line 2: the same token as in line 1",
        ),
        (
            [f"read {A}", f"read {B}", f"read {SECRET}"],
            "line 3: a third token of scope read; two may be live",
        ),
    ],
)
def test_a_bad_line_is_named_and_its_token_is_not_shown(lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(*lines)
    assert caught.value.field == "auth.token_file"
    text = f"{caught.value} {caught.value.__cause__!r}"
    assert SECRET not in text
    assert A not in text


@given(st.text(max_size=80))
def test_no_line_crashes_the_reader_or_is_repeated(line: str) -> None:
    told = ""
    try:
        parse(line)
    except InputError as error:
        told = str(error)
    assert len(line) < 16 or line not in told


@given(st.text(max_size=600))
def test_no_presented_text_crashes_the_comparison(presented: str) -> None:
    assert parse(f"read {A}").find(presented + "\ud800") is None


def test_every_token_is_compared_whatever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, truly = [], hmac.compare_digest

    def compare(held: bytes, shown: bytes) -> bool:
        compared.append(held)
        return truly(held, shown)

    tokens = parse(f"read {A}", f"read {B}", f"admin {C}")
    monkeypatch.setattr(tokens_module.hmac, "compare_digest", compare)
    for presented in (A, B, C, "none of them"):
        compared.clear()
        tokens.find(presented)
        assert compared == [token.digest for token in tokens.tokens]


def test_the_set_holds_no_token() -> None:
    assert A not in repr(parse(f"read {A}"))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"read {A}\n")
    path.chmod(0o600)
    return path


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "not a regular file"),
    ):
        with pytest.raises(InputError, match=message):
            read_token_file(path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"read \xff\xfe")
    with pytest.raises(InputError, match="binary is not UTF-8 text"):
        read_token_file(binary)


def test_a_pipe_nobody_writes_to_does_not_hold_up_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        read_token_file(tmp_path / "pipe")


@pytest.mark.parametrize(("mode", "exposed"), [(0o400, False), (0o640, False), (0o604, True), (0o660, True)])
def test_a_file_that_others_may_use_is_warned_of(
    token_file: Path, caplog: pytest.LogCaptureFixture, mode: int, exposed: bool
) -> None:
    token_file.chmod(mode)
    read_token_file(token_file)
    assert len(caplog.records) == exposed


def test_a_changed_file_is_read_again_and_a_broken_one_is_logged_once(
    token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedFiles("the tokens", (token_file,), lambda: read_token_file(token_file), 0.0)
    assert scope_of(watched.current(), A) is Scope.READ
    token_file.write_text(f"admin {B}\n")
    assert scope_of(watched.current(), B) is Scope.ADMIN
    assert scope_of(watched.current(), A) is None
    token_file.write_text("admin short\n")
    for _ in range(3):
        assert scope_of(watched.current(), B) is Scope.ADMIN
    token_file.unlink()
    for _ in range(3):
        assert scope_of(watched.current(), B) is Scope.ADMIN
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert "line 1" in errors[0]
    assert "No such file" in errors[1]
    token_file.write_text(f"read {C}\n")
    assert scope_of(watched.current(), C) is Scope.READ


def test_files_are_not_looked_at_more_often_than_asked(token_file: Path) -> None:
    watched = WatchedFiles("the tokens", (token_file,), lambda: read_token_file(token_file), 3600.0)
    token_file.write_text(f"admin {B}\n")
    assert scope_of(watched.current(), B) is None
    assert watched.reload()
    assert scope_of(watched.current(), B) is Scope.ADMIN
    token_file.write_text("")
    assert not watched.reload()
    assert scope_of(watched.current(), B) is Scope.ADMIN
