"""What is wrong with settings is said all at once: where it was said, what was expected, what was got."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from service.configuration.resolve import ConfigurationError
from service.configuration.server_config import IndexSpec, ModelSpec, SchemaSpec
from service.main import cli
from tests.service.setting_samples import resolved


def problems(tmp_path: Path, toml: str | None = None, **given: object) -> list[str]:
    """Return what is found wrong, with the file's own name for its path."""
    with pytest.raises(ConfigurationError) as caught:
        resolved(tmp_path, {name: value for name, value in given.items() if name != "index"}, toml=toml)
    return [problem.replace(str(tmp_path / "server.toml"), "FILE") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[server]\nport = 70000", "FILE: server.port: must be in [0, 65535], got 70000"),
        (
            "[server]\nport = '1'",
            "FILE: server.port: must be a whole number in [0, 65535], got the text '1'",
        ),
        ("[server]\nport = 1.0", "FILE: server.port: must be a whole number in [0, 65535], got 1.0"),
        ("[server]\nport = true", "FILE: server.port: must be a whole number in [0, 65535], got true"),
        (
            "[server]\nport = 2026-11-22",
            "FILE: server.port: must be a whole number in [0, 65535], got the date or time 2026-11-22",
        ),
        ("[server]\nport = []", "FILE: server.port: must be a whole number in [0, 65535], got an array"),
        ("[server.port]", "FILE: server.port: must be a whole number in [0, 65535], got a table"),
        ("[server]\ninsecure = 1", "FILE: server.insecure: must be true or false, got 1"),
        ("[server]\nhost = 5", "FILE: server.host: must be text, got 5"),
        ("[server]\nhost = ''", "FILE: server.host: must not be empty"),
        ("[server]\nhost = 'a b'", "FILE: server.host: must be a host name or an address, got 'a b'"),
        (
            "[batch]\nmax_delay_ms = nan",
            "FILE: batch.max_delay_ms: must be in [0, 10000], got nan",
        ),
        (
            "[log]\nlevel = 'loud'",
            "FILE: log.level: must be one of debug, info, warning, error, got 'loud'",
        ),
        ("[auth]\ntoken_file = ''", "FILE: auth.token_file: must not be empty"),
        (
            '[auth]\ntoken_file = "a\\u0000b"',
            "FILE: auth.token_file: a path has no NUL character, got 'a\\x00b'",
        ),
        (
            "[tracing]\nendpoint = 'collector:4317'",
            "FILE: tracing.endpoint: must be a URL such as http://127.0.0.1:4317 or https://..., "
            "got 'collector:4317'",
        ),
        (
            "[tracing]\nendpoint = 'http://a:b'",
            "FILE: tracing.endpoint: must be a URL such as http://127.0.0.1:4317 or https://..., got 'http://a:b'",
        ),
        ("batch = 3", "FILE: batch: must be a table, as [batch], got 3"),
        ("indexes = []", "FILE: indexes: must be a table, as [indexes.NAME], got an array"),
        ("[[indexes]]\npath = 'x'", "FILE: indexes: must be a table, as [indexes.NAME], got an array"),
        ("[indexes]\nwiki = 'x'", "FILE: indexes.wiki: must be a table, as [indexes.NAME], got the text 'x'"),
        (
            "[indexes.wiki]\nmodel = 'x'",
            'FILE: indexes.wiki: the path of the index is missing, as path = "..."',
        ),
        (
            "[indexes.' x']\npath = 'x'",
            "FILE: indexes.' x': a name must be printable text without outer blanks, got ' x'",
        ),
        ("[schemas]\na = {}", "FILE: schemas.a: must be a path, got a table"),
        ("[batch]\nmax_sise = 3", "FILE: batch.max_sise: there is no such key; did you mean batch.max_size?"),
        (
            "port = 3",
            "FILE: port: there is no such key; did you mean http.port or metrics.port or server.port?",
        ),
        ("colour = 3", "FILE: colour: there is no such key"),
        (
            "[bacth]\nmax_size = 3",
            "FILE: bacth: there is no such table; did you mean batch? (it has max_size)",
        ),
        (
            "[indexes.w]\npath='x'\nmodle='y'",
            "FILE: indexes.w.modle: there is no such key; did you mean indexes.w.model?",
        ),
        ("[models.m]\ndtyp='y'", "FILE: models.m.dtyp: there is no such key; did you mean models.m.dtype?"),
        (
            "[models.m]\ndtype='int8'",
            "FILE: models.m.dtype: must be one of auto, float32, bfloat16, float16, float64, got 'int8'",
        ),
        ("x = \n", "FILE: not valid TOML: Invalid value (at line 1, column 5)"),
        (
            "[server]\nport = 1\nport = 2\n",
            "FILE: not valid TOML: Cannot overwrite a value (at line 3, column 9)",
        ),
        ("x = " + "[" * 5000, "FILE: not valid TOML: arrays or tables are nested too deeply"),
    ],
)
def test_a_mistake_of_a_file_is_told_with_its_key(tmp_path: Path, toml: str, message: str) -> None:
    assert problems(tmp_path, toml) == [message]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    run = CliRunner()
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
        done = run.invoke(cli, ["serve", "--config", str(file), "--port", "x"])
        assert done.exit_code == 2
        assert f"{file}: {message}" in done.stderr
        assert "--port: must be a whole number" in done.stderr, "the rest is looked at as well"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"port": "x"}, "--port: must be a whole number in [0, 65535], got 'x'"),
        ({"port": "9" * 5000}, f"--port: must be a whole number in [0, 65535], got {'9' * 5000!r}"),
        ({"max_delay_ms": "x"}, "--max-delay-ms: must be a number in [0, 10000], got 'x'"),
        ({"max_delay_ms": "inf"}, "--max-delay-ms: must be in [0, 10000], got inf"),
        ({"token_file": ""}, "--token-file: must not be empty"),
        ({"device": "a\nb"}, "--device: must be printable text, got 'a\\nb'"),
        ({"index": ["a="]}, "--index: expected NAME=PATH or PATH, got 'a='"),
        ({"index": ["i=/x"]}, "--index: two indexes are named 'i'; tell them apart with NAME=PATH"),
        ({"schema": ["a=x", "a=y"]}, "--schema: two schemas are named 'a'; tell them apart with NAME=FILE"),
        ({"add_model": ["a"]}, "--add-model: expected NAME=CHECKPOINT, got 'a'"),
        (
            {"add_model": ["a=x", "a=y"]},
            "--add-model: two models are named 'a'; tell them apart with NAME=CHECKPOINT",
        ),
        (
            {"add_model": ["default=x"], "model": "y"},
            "--add-model: two models are named 'default'; tell them apart with NAME=CHECKPOINT",
        ),
        ({"use_model": ["i"]}, "--use-model: expected INDEX=MODEL, got 'i'"),
        (
            {"use_model": ["i=big"]},
            "--use-model: index 'i' names the model 'big'; models here: 'default'",
        ),
        ({"use_model": ["j=default"]}, "--use-model: no index is named 'j'; indexes here: 'i'"),
        ({"use_model": ["i=a", "i=b"]}, "--use-model: indexes.i.model is given twice"),
        ({"encoder": ["/models/e5"]}, "--encoder: expected INDEX=ENCODER, got '/models/e5'"),
        ({"encoder": ["j=/models/e5"]}, "--encoder: no index is named 'j'; indexes here: 'i'"),
        ({"encoder": ["i=a", "i=b"]}, "--encoder: indexes.i.encoder is given twice"),
        ({"http_port": "50051"}, "--http-port: must differ from --port, which is 50051 as well"),
        ({"tls_certificate": "c"}, "--tls-certificate: a certificate needs its private key, --tls-key"),
        ({"tls_key": "k"}, "--tls-key: a private key needs its certificate, --tls-certificate"),
        (
            {"log_queries": True},
            "--log-queries: queries are logged with their requests, which needs --log-requests as well",
        ),
    ],
)
def test_a_mistake_of_a_flag_is_told_with_it(tmp_path: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(tmp_path, given)
    assert list(caught.value.problems) == [message]


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
    config = resolved(
        tmp_path,
        {
            "index": ["people=/new", "more=/more"],
            "schema": ["two=/2.json"],
            "device": "cpu",
            "add_model": ["big=b"],
        },
        {"GENRET_SERVE_INDEX": "env=/env people=/ignored", "GENRET_SERVE_USE_MODEL": "more=big"},
        toml,
        index="first",
    ).config
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
    given: dict[str, object] = {
        "trust_remote_code": True,
        "draft_model": "d",
        "dtype": "float32",
        "add_model": ["b=x"],
    }
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
    assert (config.auth.token_file, config.tls.key) == (Path("/t"), Path("k"))
    assert config.models[0].checkpoint == str(tmp_path / "models")
    assert config.models[0].draft == "org/name"
    assert config.models[1].checkpoint == str(tmp_path / "none")


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    names = {"GENRET_SERVE_PORT": "", "GENRET_SERVE_TOKEN_FILE": "", "GENRET_SERVE_INDEX": " "}
    assert resolved(tmp_path, {}, names) == resolved(tmp_path)
