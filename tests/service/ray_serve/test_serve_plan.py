"""A deployment on Ray Serve: what is checked before it starts, its file, and what a failed start leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from genret.retrieval.errors import InputError
from genret.service.configuration.resolve import ConfigurationError
from genret.service.configuration.server_config import (
    AuthConfig,
    HttpConfig,
    IndexSpec,
    MetricsConfig,
    ModelSpec,
    QueueLimits,
    SchemaSpec,
    ServerConfig,
    TlsConfig,
)
from genret.service.errors import ServiceError
from genret.service.main import cli
from genret.service.ray_serve.app import configuration_of, deploy, start_proxies
from genret.service.ray_serve.deployment import REFUSAL, SERVICER_FUNCTION, ServePlan, with_absolute_paths

INSECURE, NOBODY = ("x=/x", "--insecure"), "127.0.0.1:1"
CONFIG = ServerConfig(indexes=(IndexSpec("titles", Path("/indexes/titles")),), insecure=True)


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"name": "two words"}, {}, "name: must be made of A-Z a-z 0-9 . _ -, got 'two words'"),
        ({"num_replicas": 0}, {}, "num_replicas: must be at least 1, got 0"),
        ({"num_cpus": -1.0}, {}, "num_cpus: must be at least 0, got -1"),
        ({"num_gpus": float("nan")}, {}, "num_gpus: must be at least 0, got nan"),
        ({"http_port": 0}, {}, "http_proxy_port: must be in [1, 65535], got 0"),
        ({}, {"port": 0}, "port: Ray must be told a port"),
        ({}, {"http": HttpConfig(port=8080)}, "http_port: is not served behind Ray Serve's proxy"),
        ({}, {"metrics": MetricsConfig(port=9000)}, "metrics_port: replicas of one node cannot share a port"),
        ({}, {"tls": TlsConfig(Path("c"), Path("k"))}, "tls_cert: Serve's proxy ends the connection"),
        ({}, {"insecure": False}, "insecure: Serve's proxies listen on all addresses of their nodes"),
    ],
)
def test_what_is_out_of_range_or_would_be_dropped_by_a_proxy_is_named(
    options: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        ServePlan(replace(CONFIG, **settings), **options)
    assert message in str(caught.value)


def test_replicas_take_more_calls_than_their_queue_so_that_it_is_they_who_refuse() -> None:
    assert ServePlan(CONFIG).deployment_options()["max_ongoing_requests"] == 1024
    long = replace(CONFIG, queue=QueueLimits(max_requests=5000))
    assert ServePlan(long).deployment_options()["max_ongoing_requests"] == 10_000


def test_paths_mean_the_same_in_the_folder_of_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    config = ServerConfig(
        indexes=(IndexSpec("titles", Path("index")),),
        schemas=(SchemaSpec("book", Path("book.json")),),
        models=(ModelSpec(checkpoint="model", draft="hub/name"),),
        auth=AuthConfig(Path("tokens")),
        insecure=True,
    )
    made = with_absolute_paths(config)
    assert [spec.path for spec in (*made.indexes, *made.schemas)] == [
        tmp_path / "index",
        tmp_path / "book.json",
    ]
    assert [(spec.checkpoint, spec.draft) for spec in made.models] == [(str(tmp_path / "model"), "hub/name")]
    assert made.auth.token_file == tmp_path / "tokens"
    assert ServePlan(config).paths() == {
        str(tmp_path / "index"): "the index",
        str(tmp_path / "book.json"): "the schema",
        str(tmp_path / "model"): "the model",
        str(tmp_path / "tokens"): "the token file",
    }


def test_the_file_says_what_is_deployed_and_gives_the_same_configuration_back() -> None:
    yaml = pytest.importorskip("yaml")
    runner = CliRunner()
    arguments = ["deploy-ray", "titles=/indexes/titles", "--insecure", "--print-config"]
    arguments += ["--num-replicas", "3", "--num-gpus", "0.5", "--port", "7000", "--max-queue-size", "64"]
    result = runner.invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    told = yaml.safe_load(result.output)
    assert told["grpc_options"] == {"port": 7000, "grpc_servicer_functions": [SERVICER_FUNCTION]}
    (application,) = told["applications"]
    assert application["import_path"] == "genret.service.ray_serve.app:build"
    (deployment,) = application["deployments"]
    assert deployment["num_replicas"] == 3
    assert deployment["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 0.5}
    config = configuration_of(application["args"])
    assert config == replace(CONFIG, port=7000, queue=QueueLimits(max_requests=64))


def test_a_file_of_settings_can_be_named_instead(tmp_path: Path) -> None:
    file = tmp_path / "genret.toml"
    file.write_text('[server]\ninsecure = true\n[indexes.titles]\npath = "/indexes/titles"\n')
    assert configuration_of({"config": str(file)}) == CONFIG


@pytest.mark.parametrize("args", [{}, {"settings": "", "config": "f"}, {"setings": ""}])
def test_other_arguments_are_refused(args: dict[str, str]) -> None:
    with pytest.raises(InputError, match="must have either settings or config"):
        configuration_of(args)


def test_wrong_settings_are_all_named() -> None:
    with pytest.raises(ConfigurationError, match="2 settings are wrong"):
        configuration_of({"settings": "[server]\nport = -1\n[batch]\nmax_size = 0\n"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x=/x"], "--insecure: Serve's proxies listen on all addresses"),
        (["x=/x", "--insecure", "--num-replicas", "0"], "--num-replicas: must be at least 1, got 0"),
        ([], "name an index"),
        ([*INSECURE, "--address", NOBODY], f"--address: no Ray cluster can be used at '{NOBODY}'"),
        ([*INSECURE, "--detach"], "--detach: needs a cluster that runs already"),
        ([*INSECURE, "--detach", "--address", "local"], "--detach: needs a cluster that runs already"),
    ],
)
def test_mistakes_on_the_command_line_are_usage_errors(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if {"--address", "--detach"} & {*arguments}:
        pytest.importorskip("ray.serve")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    result = CliRunner().invoke(cli, ["deploy-ray", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_file_to_start_from_fits_what_is_deployed() -> None:
    yaml = pytest.importorskip("yaml")
    file = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    planned = ServePlan(CONFIG, num_replicas=2).serve_config({})
    for told in (written, planned):
        told["applications"][0].pop("args")
    assert written == planned


pytest.importorskip("ray.serve")
PLAN = ServePlan(CONFIG)
CLASH = "ray::ProxyActor.ready()\n  File ...\nRuntimeError: Failed to bind to address [::]:50051\n"


class RayError(Exception):
    """Stands in for that of Ray."""


class Serve:
    """Remembers what is asked of it, and fails."""

    def __init__(self, error: BaseException, *names: str) -> None:
        self.error = error
        self.names = names
        self.asked: list[str] = []

    def start(self, **options: Any) -> None:
        raise self.error

    def run(self, application: Any, **options: Any) -> None:
        raise self.error

    def status(self) -> Any:
        deployment = SimpleNamespace(message=f"failed:\nRuntimeError: {REFUSAL}the index is broken\n")
        application = SimpleNamespace(deployments={"Genret": deployment})
        return SimpleNamespace(applications=dict.fromkeys(self.names, application))

    def delete(self, name: str) -> None:
        self.asked.append(f"delete {name}")

    def shutdown(self) -> None:
        self.asked.append("shutdown")


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    serve = Serve(RayError(CLASH))
    with pytest.raises(ServiceError) as caught:
        start_proxies(SimpleNamespace(exceptions=SimpleNamespace(RayError=RayError)), serve, PLAN)
    told = "Serve's proxy does not start: RuntimeError: Failed to bind to address [::]:50051"
    assert str(caught.value) == told
    assert serve.asked == ["shutdown"]


def test_an_application_that_does_not_start_is_taken_off_with_its_reason() -> None:
    serve, said = Serve(RuntimeError(f"failed:\nRuntimeError: {REFUSAL}the index is broken\n")), []
    with pytest.raises(ServiceError) as caught:
        deploy(serve, PLAN, said.append)
    assert str(caught.value) == "the index is broken"
    assert (serve.asked, said) == (["delete genret"], ["taking the application off"])


def test_one_that_served_before_is_left_and_an_interrupted_start_is_taken_off() -> None:
    serve = Serve(RuntimeError("Failed to update the deployments"), "genret")
    left = r"the index is broken\nthe application 'genret' that was there before"
    with pytest.raises(ServiceError, match=left):
        deploy(serve, PLAN, [].append)
    assert serve.asked == []
    interrupted = Serve(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        deploy(interrupted, PLAN, [].append)
    assert interrupted.asked == ["delete genret"]
