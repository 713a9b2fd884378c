"""What --print-config prints is a file that gives the same configuration."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.configuration.kinds import CheckpointName, FilePath, Kind, Number, Switch, Whole, Word
from service.configuration.resolve import resolve
from service.configuration.server_config import IndexSpec, ModelSpec, SchemaSpec, ServerConfig
from service.configuration.settings import SETTINGS, Setting
from service.configuration.sources import config_text
from service.main import cli
from tests.service.setting_samples import resolved

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
# What a path may hold on Linux, of what is Unicode text; "." and ".." would not stay as they are.
PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1).filter(
    lambda part: part not in (".", "..")
)
PATH = st.lists(PART, min_size=1, max_size=3).map(lambda parts: Path("/", *parts))


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Return what values of a kind may be."""
    match kind:
        case Switch():
            return st.booleans()
        case Whole(bounds=bounds):
            return st.integers(int(bounds.low), int(bounds.high))
        case Number(bounds=bounds):
            return st.floats(bounds.low, bounds.high)
        case Word(rule=rule):
            return st.sampled_from(rule.words)
        case FilePath():
            return PATH
        case CheckpointName():
            return st.one_of(PATH.map(str), PRINTABLE.map(lambda word: f"hub/{word}"))
        case _:
            return PRINTABLE


def optional(setting: Setting) -> st.SearchStrategy[Any]:
    """Return what a setting may be, None where it may be unset."""
    return st.one_of(st.none(), values(setting.kind)) if setting.default is None else values(setting.kind)


@st.composite
def models(draw: st.DrawFn, name: str) -> ModelSpec:
    of_model = [setting for setting in SETTINGS if setting.key[:2] == ("models", "default")]
    return ModelSpec(name, **{setting.attribute[0]: draw(optional(setting)) for setting in of_model})


@st.composite
def configurations(draw: st.DrawFn) -> ServerConfig:
    """Draw a configuration that keeps all rules."""
    plain: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        if setting.key[0] not in ("models", "indexes", "schemas"):
            *section, name = setting.attribute
            (sections.setdefault(section[0], {}) if section else plain)[name] = draw(optional(setting))
    names = draw(st.lists(PRINTABLE, min_size=1, max_size=3, unique=True))
    specs = tuple(draw(models(name)) for name in names)
    indexes = tuple(
        IndexSpec(name, draw(PATH), draw(st.sampled_from(names)))
        for name in draw(st.lists(PRINTABLE, min_size=1, max_size=3, unique=True))
    )
    schemas = tuple(
        SchemaSpec(name, draw(PATH)) for name in draw(st.lists(PRINTABLE, max_size=2, unique=True))
    )
    plain["insecure"] = True
    sections["tracing"]["endpoint"] = draw(st.sampled_from([None, "http://[::1]:4317", "https://a.example"]))
    plain["port"], sections["http"]["port"], sections["metrics"]["port"] = draw(ports())
    sections["log"]["requests"] |= sections["log"]["queries"]
    tls = sections["tls"]
    if tls["certificate"] is None or tls["key"] is None:
        sections["tls"] = dict.fromkeys(tls)
    default = ServerConfig(indexes=indexes, models=specs)
    made = {name: type(getattr(default, name))(**parts) for name, parts in sections.items()}
    return ServerConfig(indexes=indexes, models=specs, schemas=schemas, **plain, **made)


@st.composite
def ports(draw: st.DrawFn) -> tuple[int, int | None, int | None]:
    one, two, three = draw(st.lists(st.integers(1, 65_535), min_size=3, max_size=3, unique=True))
    return (
        draw(st.sampled_from([0, one])),
        draw(st.sampled_from([None, 0, two])),
        draw(st.sampled_from([None, 0, three])),
    )


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(config=configurations())
def test_what_is_printed_gives_the_same_configuration(tmp_path: Path, config: ServerConfig) -> None:
    file = tmp_path / "printed.toml"
    text = config_text(config, {})
    file.write_text(text, encoding="utf-8")
    again = resolve({}, None, {}, file)
    assert again.config == config
    assert config_text(again.config, {}) == text


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    toml = "[batch]\nmax_size = 7\n[models.big]\ncheckpoint = 'hub/big'\n"
    found = resolved(
        tmp_path, {"max_delay_ms": "3", "index": ["x=/x"]}, {"GENRET_SERVE_USE_MODEL": "x=big"}, toml, "/a"
    )
    lines = config_text(found.config, found.origins).splitlines()
    file = tmp_path / "server.toml"
    for line in (
        f"max_size = 7  # {file}",
        "max_delay_ms = 3.0  # --max-delay-ms",
        "max_tokens = 16384  # default",
        "# token_file is not set: nobody is asked for a token",
        f'checkpoint = "hub/big"  # {file}',
        'model = "big"  # GENRET_SERVE_USE_MODEL',
        'path = "/a"  # INDEX',
        'path = "/x"  # --index',
    ):
        assert line in lines


def test_a_name_of_a_file_with_a_line_end_stays_in_its_comment(tmp_path: Path) -> None:
    file = tmp_path / "a\nport = 1"
    file.write_text("[server]\nport = 7\n", encoding="utf-8")
    found = resolve({}, "i", {}, file)
    assert tomllib.loads(config_text(found.config, found.origins))["server"]["port"] == 7


def test_relative_paths_are_printed_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    config = resolved(tmp_path, {"model": "model", "token_file": "tokens"}, index="i").config
    printed = tomllib.loads(config_text(config, {}))
    assert printed["indexes"]["i"]["path"] == str(tmp_path / "i")
    assert printed["auth"]["token_file"] == str(tmp_path / "tokens")
    assert printed["models"]["default"]["checkpoint"] == str(tmp_path / "model")


def test_a_path_that_is_no_text_cannot_be_printed() -> None:
    done = CliRunner().invoke(cli, ["serve", "i", "--print-config", "--token-file", "/\udcff"])
    assert done.exit_code == 2
    assert "--token-file: TOML holds Unicode text only, got '/\\udcff'" in done.stderr


def test_printing_starts_nothing(tmp_path: Path) -> None:
    """Nothing is opened, and neither torch nor gRPC is imported."""
    code = (
        "import sys\nfrom service.main import cli\n"
        "cli(['serve', 'nowhere', '--print-config'], standalone_mode=False)\n"
        "assert not {'torch', 'grpc', 'pyarrow', 'transformers'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["indexes"]["nowhere"]["path"] == str(tmp_path / "nowhere")
    assert done.stderr == ""


def test_the_file_of_the_manual_is_one(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        PAGE.read_text(encoding="utf-8").split("```toml\n", 1)[1].split("```", 1)[0], encoding="utf-8"
    )
    run = CliRunner()
    first = run.invoke(cli, ["serve", "--config", str(file), "--print-config"])
    assert first.exit_code == 0, first.output
    assert f'path = "{tmp_path}/indexes/products"  # {file}' in first.stdout
    file.write_text(first.stdout, encoding="utf-8")
    second = run.invoke(cli, ["serve", "--print-config"], env={"GENRET_SERVE_CONFIG": str(file)})
    assert second.stdout == first.stdout.replace("# default", f"# {file}")


def test_the_mistakes_of_the_manual_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.toml").write_text('[batch]\nmax_sise = 3\n[http]\nport = "8080"\n', encoding="utf-8")
    done = CliRunner().invoke(
        cli, ["serve", "--config", "server.toml"], env={"GENRET_SERVE_PORT": "many"}, prog_name="genret"
    )
    assert done.exit_code == 2
    assert done.stderr in PAGE.read_text(encoding="utf-8")
