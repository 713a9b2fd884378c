"""Settings: their sources, mistakes in them, the printed configuration, and the manual."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import json
import pathlib
import tomllib
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import InputError
from genret.service.commands.serve import serve_command
from genret.service.configuration import kinds
from genret.service.configuration.kinds import Bounds, Kind, OneOf
from genret.service.configuration.resolve import ConfigurationError, Resolved, resolve
from genret.service.configuration.server_config import (
    IndexSpec,
    LogConfig,
    ModelSpec,
    SchemaSpec,
    ServerConfig,
    TracingConfig,
    is_loopback,
    join_address,
)
from genret.service.configuration.settings import NAME, SETTINGS, Key, Setting, renewed
from genret.service.configuration.sources import config_text
from genret.service.main import cli
from tests.commands import refusal, succeed

# What has to be said beside a setting so that the rules between settings hold.
_COMPANIONS: dict[str, dict[str, object]] = {
    "tls_certificate": {"tls_key": "/k"},
    "tls_key": {"tls_certificate": "/c"},
    "tls_client_ca": {"tls_certificate": "/c", "tls_key": "/k"},
    "log_queries": {"log_requests": True},
    "encoder": {"index": ["a=/a"]},
    "use_model": {"add_model": ["one=x", "two=x", "three=x", "default=x"], "index": ["a=/a"]},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a setting, as text and as Python has it."""

    setting: Setting
    text: str
    value: Any

    @property
    def flag(self) -> object:
        if isinstance(self.value, bool):
            return self.value
        return [self.text] if self.setting.repeated else self.text

    @property
    def key(self) -> Key:
        return self.setting.named("a")

    @property
    def toml(self) -> str:
        value = str(self.value) if isinstance(self.value, Path) else self.value
        if len(self.key) == 2 and self.key[0] == "schemas":
            return f"[schemas]\na = {json.dumps(value)}\n"
        *table, name = self.key
        return f"[{'.'.join(table)}]\n{name} = {json.dumps(value)}\n"

    @property
    def companions(self) -> dict[str, object]:
        return _COMPANIONS.get(self.setting.parameter, {})

    def got(self, config: ServerConfig) -> Any:
        holder: Any = config
        if self.setting.key[0] in ("indexes", "models", "schemas"):
            name = "a" if NAME in self.setting.key else "default"
            (holder,) = (spec for spec in getattr(config, self.setting.key[0]) if spec.name == name)
        for part in self.setting.attribute:
            holder = getattr(holder, part)
        return holder


def sample(setting: Setting, number: int) -> Sample:
    """Return one of three values, as different as the kind allows; the first is not the default."""
    kind = setting.kind
    value: Any
    match kind.type:
        case _ if isinstance(kind.rule, OneOf):
            others = [word for word in kind.rule.words if word != setting.default]
            value = others[number % len(others)]
        case builtins.bool:
            value = (number % 2 == 0) is not setting.default
        case builtins.int:
            value = 1031 + number if setting.default is None else setting.default + 1 + number
        case builtins.float:
            value = 0.125 * (1 + number)
        case pathlib.Path:
            value = Path(f"/some/where{number}")
        case kinds.Checkpoint:
            value = f"hub/model-{number}"
        case _ if setting.key[-1] == "endpoint":
            value = f"http://127.0.0.{2 + number}:4317"
        case _:
            value = f"127.0.0.{2 + number}" if setting.key[-1] == "host" else ["one", "two", "three"][number]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Sample(setting, f"a={text}" if setting.repeated else text, value)


def resolved(
    tmp_path: Path,
    flags: dict[str, object] | None = None,
    variables: dict[str, str] | None = None,
    toml: str | None = None,
    index: str | None = "/i",
) -> Resolved:
    """Resolve settings, with an index named "i" unless told otherwise."""
    file = None
    if toml is not None:
        file = tmp_path / "server.toml"
        file.write_text(toml, encoding="utf-8")
    return resolve(flags or {}, index, variables or {}, file)


def problems(tmp_path: Path, toml: str) -> list[str]:
    """Return what is found wrong with a file, named FILE."""
    with pytest.raises(ConfigurationError) as caught:
        resolved(tmp_path, toml=toml)
    return [problem.replace(str(tmp_path / "server.toml"), "FILE") for problem in caught.value.problems]


PORT = "must be a whole number in [0, 65535]"
A_URL = "must be a URL such as http://127.0.0.1:4317 or https://..."
A_NAME = "a name must be printable text without outer blanks"
NO_KEY = "there is no such key"
DTYPES = "auto, float32, bfloat16, float16, float64"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[server]\nport = 70000", "server.port: must be in [0, 65535], got 70000"),
        ("[server]\nport = '1'", f"server.port: {PORT}, got the text '1'"),
        ("[server]\nport = 1.0", f"server.port: {PORT}, got 1.0"),
        ("[server]\nport = true", f"server.port: {PORT}, got true"),
        ("[server]\nport = 2026-11-22", f"server.port: {PORT}, got the date or time 2026-11-22"),
        ("[server]\nport = []", f"server.port: {PORT}, got an array"),
        ("[server.port]", f"server.port: {PORT}, got a table"),
        ("[server]\ninsecure = 1", "server.insecure: must be true or false, got 1"),
        ("[server]\nhost = 5", "server.host: must be text, got 5"),
        ("[server]\nhost = ''", "server.host: must not be empty"),
        ("[server]\nhost = 'a b'", "server.host: must be a host name or an address, got 'a b'"),
        ("[batch]\nmax_delay_ms = nan", "batch.max_delay_ms: must be in [0, 10000], got nan"),
        ("[log]\nlevel = 'loud'", "log.level: must be one of debug, info, warning, error, got 'loud'"),
        ("[auth]\ntoken_file = ''", "auth.token_file: must not be empty"),
        ('[auth]\ntoken_file = "a\\u0000b"', "auth.token_file: a path has no NUL character, got 'a\\x00b'"),
        ("[tracing]\nendpoint = 'collector:4317'", f"tracing.endpoint: {A_URL}, got 'collector:4317'"),
        ("[tracing]\nendpoint = 'http://a:b'", f"tracing.endpoint: {A_URL}, got 'http://a:b'"),
        ("batch = 3", "batch: must be a table, as [batch], got 3"),
        ("indexes = []", "indexes: must be a table, as [indexes.NAME], got an array"),
        ("[[indexes]]\npath = 'x'", "indexes: must be a table, as [indexes.NAME], got an array"),
        ("[indexes]\nwiki = 'x'", "indexes.wiki: must be a table, as [indexes.NAME], got the text 'x'"),
        ("[indexes.wiki]\nmodel = 'x'", 'indexes.wiki: the path of the index is missing, as path = "..."'),
        ("[indexes.' x']\npath = 'x'", f"indexes.' x': {A_NAME}, got ' x'"),
        ("[schemas]\na = {}", "schemas.a: must be a path, got a table"),
        ("[batch]\nmax_sise = 3", "batch.max_sise: there is no such key; did you mean batch.max_size?"),
        ("port = 3", "port: there is no such key; did you mean http.port or metrics.port or server.port?"),
        ("colour = 3", "colour: there is no such key"),
        ("[bacth]\nmax_size = 3", "bacth: there is no such table; did you mean batch? (it has max_size)"),
        ("[indexes.w]\npath='x'\nmodle='y'", f"indexes.w.modle: {NO_KEY}; did you mean indexes.w.model?"),
        ("[models.m]\ndtyp='y'", "models.m.dtyp: there is no such key; did you mean models.m.dtype?"),
        ("[models.m]\ndtype='int8'", f"models.m.dtype: must be one of {DTYPES}, got 'int8'"),
        ("x = \n", "not valid TOML: Invalid value (at line 1, column 5)"),
        ("[server]\nport = 1\nport = 2\n", "not valid TOML: Cannot overwrite a value (at line 3, column 9)"),
        ("x = " + "[" * 5000, "not valid TOML: arrays or tables are nested too deeply"),
    ],
)
def test_a_mistake_of_a_file_is_told_with_its_key(tmp_path: Path, toml: str, message: str) -> None:
    assert problems(tmp_path, toml) == [f"FILE: {message}"]


LOGGED = "queries are logged with their requests"
APART = "tell them apart with NAME"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"a = '\xff'")
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (2**20 + 1))
    for file, message in (
        (tmp_path / "none.toml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (bad, "not valid UTF-8 at byte 6"),
        (big, "settings of at most 1,048,576 bytes are expected, this is larger"),
    ):
        said = refusal(cli, "serve", "--config", file, "--port", "x")
        assert f"{file}: {message}" in said
        assert "--port: must be a whole number" in said, "the rest is looked at as well"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"port": "9" * 5000}, f"port: must be a whole number in [0, 65535], got {'9' * 5000!r}"),
        ({"max_delay_ms": "x"}, "max-delay-ms: must be a number in [0, 10000], got 'x'"),
        ({"max_delay_ms": "inf"}, "max-delay-ms: must be in [0, 10000], got inf"),
        ({"token_file": ""}, "token-file: must not be empty"),
        ({"device": "a\nb"}, "device: must be printable text, got 'a\\nb'"),
        ({"index": ["a="]}, "index: expected NAME=PATH or PATH, got 'a='"),
        ({"index": ["i=/x"]}, "index: two indexes are named 'i'; tell them apart with NAME=PATH"),
        ({"schema": ["a=x", "a=y"]}, "schema: two schemas are named 'a'; tell them apart with NAME=FILE"),
        ({"add_model": ["a"]}, "add-model: expected NAME=CHECKPOINT, got 'a'"),
        ({"add_model": ["a=x", "a=y"]}, f"add-model: two models are named 'a'; {APART}=CHECKPOINT"),
        (
            {"add_model": ["default=x"], "model": "y"},
            f"add-model: two models are named 'default'; {APART}=CHECKPOINT",
        ),
        ({"use_model": ["i"]}, "use-model: expected INDEX=MODEL, got 'i'"),
        ({"use_model": ["i=big"]}, "use-model: index 'i' names the model 'big'; models here: 'default'"),
        ({"use_model": ["j=default"]}, "use-model: no index is named 'j'; indexes here: 'i'"),
        ({"use_model": ["i=a", "i=b"]}, "use-model: indexes.i.model is given twice"),
        ({"encoder": ["/models/e5"]}, "encoder: expected INDEX=ENCODER, got '/models/e5'"),
        ({"encoder": ["j=/models/e5"]}, "encoder: no index is named 'j'; indexes here: 'i'"),
        ({"encoder": ["i=a", "i=b"]}, "encoder: indexes.i.encoder is given twice"),
        ({"http_port": "50051"}, "http-port: must differ from --port, which is 50051 as well"),
        ({"tls_certificate": "c"}, "tls-certificate: a certificate needs its private key, --tls-key"),
        ({"tls_key": "k"}, "tls-key: a private key needs its certificate, --tls-certificate"),
        ({"log_queries": True}, f"log-queries: {LOGGED}, which needs --log-requests as well"),
    ],
)
def test_a_mistake_of_a_flag_is_told_with_it(tmp_path: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(tmp_path, given)
    assert list(caught.value.problems) == [f"--{message}"]


def test_mistakes_of_all_sources_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(
            tmp_path,
            {"threads": "0", "port": "x"},
            {"GENRET_SERVE_HTTP_PORT": "-1", "GENRET_SERVE_LOG_REQUESTS": "maybe"},
            "[queue]\nmax_requests = 0\nmax_request = 1\n",
        )
    file = tmp_path / "server.toml"
    assert str(caught.value).split("\n") == [
        "6 settings are wrong:",
        f"  {file}: queue.max_requests: must be in [1, 1000000], got 0",
        f"  {file}: queue.max_request: there is no such key; did you mean queue.max_requests?",
        "  GENRET_SERVE_HTTP_PORT, for --http-port: must be in [0, 65535], got -1",
        "  GENRET_SERVE_LOG_REQUESTS, for --log-requests: must be true or false, got 'maybe'",
        "  --threads: must be in [1, 4096], got 0",
        "  --port: must be a whole number in [0, 65535], got 'x'",
    ]


def test_broken_rules_are_told_together_with_where_the_values_to_blame_are_from(tmp_path: Path) -> None:
    toml = "[server]\nhost = '0.0.0.0'\n[metrics]\nhost='::'\nport=1\n[tls]\nclient_ca='x'\n"
    first, second, third = problems(tmp_path, toml + "[indexes.w]\npath='w'\nmodel='none'\n")[0:3]
    assert first == "FILE: indexes.w.model: index 'w' names the model 'none'; models here: 'default'"
    assert second.startswith("FILE: server.host: '0.0.0.0' can be reached from other machines")
    assert third.startswith("FILE: metrics.host: [::]:1 can be reached from other machines")
    assert problems(tmp_path, toml)[-1].startswith("FILE: tls.client_ca: clients can show certificates")


@pytest.mark.parametrize(
    ("toml", "right"),
    [
        ("[server]\nhost='0.0.0.0'\n[tls]\ncertificate='c'\nkey='k'", True),
        ("[server]\nhost='0.0.0.0'\ninsecure=true", True),
        ("[http]\nhost='0.0.0.0'", True),  # nothing listens there
        ("[http]\nhost='0.0.0.0'\nport=0", False),
        ("[http]\nhost='0.0.0.0'\nport=0\n[tls]\ncertificate='c'\nkey='k'", True),
        ("[metrics]\nhost='0.0.0.0'\nport=0\n[tls]\ncertificate='c'\nkey='k'", False),
        ("[metrics]\nhost='0.0.0.0'\nport=0\n[server]\ninsecure=true", True),
        ("[http]\nport=0\n[metrics]\nport=0\n[server]\nport=0", True),
        ("[http]\nport=9\n[metrics]\nport=9", False),
    ],
)
def test_what_may_listen_where(tmp_path: Path, toml: str, right: bool) -> None:
    if right:
        assert resolved(tmp_path, toml=toml).config.indexes
    else:
        assert len(problems(tmp_path, toml)) == 1


def test_what_flags_name_is_added_to_the_file_and_wins_over_it(tmp_path: Path) -> None:
    toml = """
    [indexes.people]
    path = "people"
    model = "small"
    [indexes.wiki]
    path = "/data/wiki"
    [models.small]
    checkpoint = "org/small"
    threads = 2
    [schemas]
    one = "one.json"
    """
    flags: dict[str, object] = {"index": ["people=/new", "more=/more"], "schema": ["two=/2.json"]}
    flags |= {"device": "cpu", "add_model": ["big=b"]}
    variables = {"GENRET_SERVE_INDEX": "env=/env people=/ignored", "GENRET_SERVE_USE_MODEL": "more=big"}
    config = resolved(tmp_path, flags, variables, toml, index="first").config
    assert config.indexes == (
        IndexSpec("first", Path("first")),
        IndexSpec("people", Path("/new"), "small"),
        IndexSpec("wiki", Path("/data/wiki")),
        IndexSpec("env", Path("/env")),
        IndexSpec("more", Path("/more"), "big"),
    )
    assert config.schemas == (SchemaSpec("one", tmp_path / "one.json"), SchemaSpec("two", Path("/2.json")))
    assert {spec.name: spec for spec in config.models} == {
        "default": ModelSpec(device="cpu"),
        "small": ModelSpec("small", "org/small", num_threads=2),
        "big": ModelSpec("big", "b", device="cpu"),
    }


def test_a_further_model_does_not_inherit_the_permission_to_run_code(tmp_path: Path) -> None:
    given: dict[str, object] = {"trust_remote_code": True, "draft_model": "d", "dtype": "float32"}
    given["add_model"] = ["b=x"]
    models = {spec.name: spec for spec in resolved(tmp_path, given).config.models}
    assert models["default"].trust_remote_code
    assert models["b"] == ModelSpec("b", "x", dtype="float32")


def test_the_default_model_is_there_only_if_it_is_wanted(tmp_path: Path) -> None:
    toml = "[models.big]\n[indexes.a]\npath='a'\nmodel='big'\n"
    assert [spec.name for spec in resolved(tmp_path, toml=toml, index=None).config.models] == ["big"]
    assert [spec.name for spec in resolved(tmp_path, toml=toml).config.models] == ["default", "big"]


def test_paths_of_a_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    toml = "[indexes.a]\npath='a'\n[auth]\ntoken_file='/t'\n"
    toml += "[models.default]\ncheckpoint='models'\ndraft='org/name'\n[models.b]\ncheckpoint='./none'\n"
    config = resolved(tmp_path, {"tls_certificate": "c", "tls_key": "k"}, toml=toml, index="i").config
    assert config.indexes == (IndexSpec("i", Path("i")), IndexSpec("a", tmp_path / "a"))
    assert (config.token_file, config.tls.key) == (Path("/t"), Path("k"))
    assert config.models[0].checkpoint == str(tmp_path / "models")
    assert config.models[0].draft == "org/name"
    assert config.models[1].checkpoint == str(tmp_path / "none")


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    names = {"GENRET_SERVE_PORT": "", "GENRET_SERVE_TOKEN_FILE": "", "GENRET_SERVE_INDEX": " "}
    assert resolved(tmp_path, {}, names) == resolved(tmp_path)


ONE = (IndexSpec("a", Path("a")),)


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("wiki=/data/x", "wiki", "/data/x"),
        ("/data/wiki", "wiki", "/data/wiki"),
        ("/data/wiki/", "wiki", "/data/wiki"),
        ("a=b=c", "a", "b=c"),
    ],
)
def test_an_index_is_named_or_takes_its_directorys_name(text: str, name: str, path: str) -> None:
    (spec,) = resolve({}, text, {}, None).config.indexes
    assert spec == IndexSpec(name, Path(path))


@pytest.mark.parametrize("text", ["", "=x", "a=", " =x", "a\n=x"])
def test_index_names_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^INDEX: (expected NAME=PATH or PATH|a name must be)"):
        resolve({}, text, {}, None)


LOOPBACK, BEYOND = ("localhost", "127.0.0.1", "127.8.8.8", "::1"), ("0.0.0.0", "::", "192.168.0.1", "a.org")


@pytest.mark.parametrize("host", [*LOOPBACK, *BEYOND])
def test_plaintext_beyond_loopback_must_be_asked_for(host: str) -> None:
    assert is_loopback(host) == (host in LOOPBACK)
    with contextlib.nullcontext() if host in LOOPBACK else pytest.raises(InputError, match="--insecure"):
        ServerConfig(indexes=ONE, host=host)
    assert ServerConfig(indexes=ONE, host=host, insecure=True).host == host


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ServerConfig(indexes=()), "index"),
        (lambda: ServerConfig(indexes=ONE, models=()), "add_model"),
        (lambda: ServerConfig(indexes=ONE, host=""), "host"),
        (lambda: ModelSpec(" a"), "add_model"),
        (lambda: ModelSpec(dtype="int8"), "dtype"),
        (lambda: LogConfig(level="loud"), "log_level"),
        (lambda: ServerConfig(indexes=ONE, tracing=TracingConfig("a:1")), "tracing_endpoint"),
    ],
)
def test_values_that_cannot_be_name_their_option(make: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize(
    "setting", [one for one in SETTINGS if isinstance(one.kind.rule, Bounds)], ids=lambda one: one.dotted
)
def test_values_out_of_range_name_their_option(setting: Setting) -> None:
    bounds: Any = setting.kind.rule
    *section, name = setting.attribute
    owner: Any = ModelSpec() if setting.key[0] == "models" else ServerConfig(indexes=ONE)
    for part in section:
        owner = getattr(owner, part)
    for wrong in (bounds.low - 1, bounds.high + 1, float("nan"), True, "5"):
        with pytest.raises(InputError) as caught:
            replace(owner, **{name: wrong})
        assert caught.value.field == setting.parameter


def test_ipv6_addresses_get_brackets() -> None:
    assert join_address("::1", 5) == "[::1]:5"
    assert ServerConfig(indexes=ONE, port=7).address == "127.0.0.1:7"


EVERY = [pytest.param(setting, id=setting.dotted) for setting in SETTINGS]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def leaves(owner: Any, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the attributes of a configuration that are no sections."""
    found = set()
    for one in fields(owner):
        default = one.default_factory() if callable(one.default_factory) else None
        inner = leaves(type(default), (*above, one.name)) if is_dataclass(default) else {(*above, one.name)}
        found |= inner
    return found


def test_no_field_of_the_configuration_is_without_a_setting() -> None:
    of = {"plain": set[tuple[str, ...]](), "indexes": set(), "models": set(), "schemas": set()}
    for setting in SETTINGS:
        of.get(setting.key[0], of["plain"]).add(setting.attribute)
    assert of["plain"] == leaves(ServerConfig) - {("indexes",), ("models",), ("schemas",)}
    for table, owner in (("indexes", IndexSpec), ("models", ModelSpec), ("schemas", SchemaSpec)):
        assert of[table] == leaves(owner) - {("name",)}


def test_keys_flags_and_variables_are_distinct() -> None:
    for words in ([s.key for s in SETTINGS], [s.flag for s in SETTINGS], [s.variable for s in SETTINGS]):
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("setting", EVERY)
def test_the_command_has_the_option_with_its_default_and_variable(setting: Setting) -> None:
    (option,) = (p for p in serve_command.params if setting.flag in p.opts)
    assert isinstance(option, click.Option)
    assert option.envvar == setting.variable
    assert option.help == setting.help
    if not setting.repeated:
        assert option.default == setting.default
    assert option.secondary_opts == ([setting.negation] if setting.negation else [])


SOURCES = ("flag", "variable", "file")


@pytest.mark.parametrize(
    "sources", [some for size in (1, 2, 3) for some in itertools.combinations(SOURCES, size)], ids="-".join
)
@pytest.mark.parametrize("setting", EVERY)
def test_a_flag_wins_over_a_variable_over_the_file(
    tmp_path: Path, setting: Setting, sources: tuple[str, ...]
) -> None:
    given = {source: sample(setting, number) for number, source in enumerate(sources)}
    first = given[sources[0]]
    found = resolved(
        tmp_path,
        first.companions | ({setting.parameter: given["flag"].flag} if "flag" in given else {}),
        {setting.variable: given["variable"].text} if "variable" in given else {},
        given["file"].toml if "file" in given else "",
        index=None if setting.parameter in ("use_model", "encoder") else "/i",
    )
    got, origin = first.got(found.config), found.origins[first.key]
    assert (got, type(got)) == (first.value, type(first.value))
    if sources[0] == "file":
        assert origin.label == f"{tmp_path / 'server.toml'}: {'.'.join(first.key)}"
    else:
        assert origin.short == (setting.flag if sources[0] == "flag" else setting.variable)


def test_without_any_source_there_are_the_defaults(tmp_path: Path) -> None:
    assert resolved(tmp_path).config == ServerConfig(indexes=(IndexSpec("i", Path("/i")),))
    assert resolved(tmp_path, toml="").config == resolved(tmp_path).config
    assert resolved(tmp_path).origins.keys() == {("indexes", "i", "path")}


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.negation])
def test_switches_are_switched_both_ways(setting: Setting) -> None:
    """The command line hands on what it was given, so that a flag takes back what a file says."""
    beside = ["--log-requests"] if setting.parameter == "log_queries" else []
    for flag, word in ((setting.flag, "true"), (setting.negation, "false")):
        assert flag is not None
        other = {setting.variable: "false" if word == "true" else "true"}
        done = succeed(cli, "serve", "i", "--print-config", *beside, flag, env=other)
        assert f"{setting.key[-1]} = {word}  # {setting.flag}\n" in done.stdout


def test_the_manual_has_the_table_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run: python -m genret.service.configuration.settings docs/configuration.md"
    for setting in SETTINGS:
        assert f"| `{setting.dotted}` |" in page


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
# What a path may hold on Linux, of what is Unicode text; "." and ".." would not stay as they are.
PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1).filter(
    lambda part: part not in (".", "..")
)
PATH = st.lists(PART, min_size=1, max_size=3).map(lambda parts: Path("/", *parts))


def values(kind: Kind) -> st.SearchStrategy[Any]:
    match kind.rule:
        case OneOf(words=words):
            return st.sampled_from(words)
        case Bounds(low=low, high=high):
            return st.integers(int(low), int(high)) if kind.type is int else st.floats(low, high)
    match kind.type:
        case builtins.bool:
            return st.booleans()
        case pathlib.Path:
            return PATH
        case kinds.Checkpoint:
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
    plain["allowed_hosts"] = draw(st.sampled_from([None, "*", "a.example, *.b.example"]))
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
    said = refusal(cli, "serve", "i", "--print-config", "--token-file", "/\udcff")
    assert "--token-file: TOML holds Unicode text only, got '/\\udcff'" in said


def test_the_file_of_the_manual_is_one(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        PAGE.read_text(encoding="utf-8").split("```toml\n", 1)[1].split("```", 1)[0], encoding="utf-8"
    )
    first = succeed(cli, "serve", "--config", file, "--print-config")
    assert f'path = "{tmp_path}/indexes/products"  # {file}' in first.stdout
    file.write_text(first.stdout, encoding="utf-8")
    second = succeed(cli, "serve", "--print-config", env={"GENRET_SERVE_CONFIG": str(file)})
    assert second.stdout == first.stdout.replace("# default", f"# {file}")


def test_the_mistakes_of_the_manual_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.toml").write_text('[batch]\nmax_sise = 3\n[http]\nport = "8080"\n', encoding="utf-8")
    done = CliRunner().invoke(
        cli, ["serve", "--config", "server.toml"], env={"GENRET_SERVE_PORT": "many"}, prog_name="genret"
    )
    assert done.exit_code == 2
    assert done.stderr in PAGE.read_text(encoding="utf-8")
