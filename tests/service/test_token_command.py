"""`genret token` makes tokens that a server takes, and checks token files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from genret.service.main import cli
from genret.service.security.bearer_tokens import Scope, read_token_file


@pytest.mark.parametrize(("options", "scope"), [([], Scope.READ), (["--scope", "admin"], Scope.ADMIN)])
def test_a_new_token_works_with_the_line_below_it(tmp_path: Path, options: list[str], scope: Scope) -> None:
    result = CliRunner().invoke(cli, ["token", "new", *options])
    assert result.exit_code == 0
    token, line = result.stdout.splitlines()
    assert token not in line
    path = tmp_path / "tokens"
    path.write_text(line)
    path.chmod(0o600)
    found = read_token_file(path).find(token)
    assert found is not None
    assert found.scope is scope
    checked = CliRunner().invoke(cli, ["token", "check", str(path)])
    assert checked.exit_code == 0
    assert checked.stdout == f"{scope.value} {found.fingerprint}\n"


def test_a_bad_file_is_told_by_line_and_without_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("read a-token-that-is-long-enough\nread tooshort\n")
    result = CliRunner().invoke(cli, ["token", "check", str(path)])
    assert result.exit_code == 1
    assert "tokens, line 2: a token must have 16 to 512 characters" in result.stderr
    assert "a-token-that" not in result.output
    assert "tooshort" not in result.output
