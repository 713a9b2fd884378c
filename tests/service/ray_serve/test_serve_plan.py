"""A deployment on Ray Serve: its checks before it starts, its file, and calls through its proxy."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest
from google.rpc import status_pb2

from genret.decoding.errors import DeadlineExceededError, DecodingError
from genret.retrieval.errors import GenretError, IndexChecksumError, InputError
from genret.service.configuration.resolve import ConfigurationError
from genret.service.configuration.server_config import (
    HttpConfig,
    IndexSpec,
    MetricsConfig,
    ModelSpec,
    QueueLimits,
    SchemaSpec,
    ServerConfig,
    TlsConfig,
)
from genret.service.errors import OverloadedError, ServiceError
from genret.service.main import cli
from genret.service.methods import METHODS
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.ray_serve.app import configuration_of, deploy, start_proxies
from genret.service.ray_serve.deployment import REFUSAL, SERVICER_FUNCTION, ServePlan, with_absolute_paths
from genret.service.ray_serve.proxied_services import MethodRegistry, add_services_to_server
from genret.service.ray_serve.replica import RELOAD, Dispatcher, GenretReplica
from genret.service.security.bearer_tokens import Scope, line_of, new_token
from tests.commands import refusal, succeed
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running
from tests.service.secured_server import tokens_in

INSECURE, NOBODY = ("x=/x", "--insecure"), "127.0.0.1:1"
CONFIG = ServerConfig(indexes=(IndexSpec("titles", Path("/indexes/titles")),), insecure=True)


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"name": "two words"}, {}, "name: must be made of A-Z a-z 0-9 . _ -, got 'two words'"),
        ({"num_replicas": 0}, {}, "num_replicas: must be an integer of at least 1, got 0"),
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
        token_file=Path("tokens"),
        insecure=True,
    )
    made = with_absolute_paths(config)
    assert [spec.path for spec in (*made.indexes, *made.schemas)] == [
        tmp_path / "index",
        tmp_path / "book.json",
    ]
    assert [(spec.checkpoint, spec.draft) for spec in made.models] == [(str(tmp_path / "model"), "hub/name")]
    assert made.token_file == tmp_path / "tokens"
    assert ServePlan(config).paths() == {
        str(tmp_path / "index"): "the index",
        str(tmp_path / "book.json"): "the schema",
        str(tmp_path / "model"): "the model",
        str(tmp_path / "tokens"): "the token file",
    }


def test_the_file_says_what_is_deployed_and_gives_the_same_configuration_back() -> None:
    yaml = pytest.importorskip("yaml")
    arguments = ["deploy-ray", "titles=/indexes/titles", "--insecure", "--print-config"]
    arguments += ["--num-replicas", "3", "--num-gpus", "0.5", "--port", "7000", "--max-queue-size", "64"]
    told = yaml.safe_load(succeed(cli, *arguments).output)
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
        (
            ["x=/x", "--insecure", "--num-replicas", "0"],
            "--num-replicas: must be an integer of at least 1, got 0",
        ),
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
    assert message in refusal(cli, "deploy-ray", *arguments)


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


RETRIEVE = "/genret.v1.RetrievalService/Retrieve"
STREAM = "/genret.v1.RetrievalService/RetrieveStream"
OTHER = "/genret.v1.RetrievalService/Other"
TOO_LARGE = "SERVER: Received message larger than max (2003 vs. 2000)"
ERRORS: dict[str, GenretError | DecodingError] = {
    "field": InputError("k", "must be otherwise"),
    "full": OverloadedError("QUEUE_FULL", "512 requests wait", 1.5),
    "late": DeadlineExceededError("too late"),
    "corrupt": IndexChecksumError("titles.arrow", "differs"),
}


class RayContext:
    """What Serve hands to a replica."""

    def __init__(self, **metadata: str) -> None:
        self.metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        self.status: Any = None
        self.details = ""
        self.trailers: list[tuple[str, Any]] = []

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def code(self) -> Any:
        return self.status

    def set_code(self, code: Any) -> None:
        self.status = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailers: list[tuple[str, Any]]) -> None:
        self.trailers = trailers


def dispatcher(s: Running, max_bytes: int = 4 * 2**20) -> Dispatcher:
    registry = MethodRegistry()
    s.server.add_services(registry)
    return Dispatcher(registry.methods, s.server.interceptors, max_bytes)


async def asked(
    s: Running, request: Any, method: str = RETRIEVE, max_bytes: int = 4 * 2**20
) -> tuple[Any, RayContext]:
    """Ask as somebody whose request id is "mine"; return the answer, and the context with what was set."""
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    context = RayContext(x_request_id="mine")
    return await dispatcher(s, max_bytes).answer(method, raw, context, pb.RetrieveResponse), context


def test_a_replica_has_every_method_of_the_api() -> None:
    for method in METHODS.values():
        behaviour = getattr(GenretReplica, method.name)
        assert "grpc_context" in inspect.signature(behaviour).parameters, "by its name Serve hands it over"
        assert inspect.isasyncgenfunction(behaviour) == method.is_stream


async def test_an_answer_is_that_of_the_server_with_the_callers_request_id() -> None:
    async with running(FakeRetriever()) as s:
        request = pb.RetrieveRequest(query="hamlet", k=3)
        answer, context = await asked(s, request)
        direct = await s.stub.Retrieve(request)
    assert [c.title for c in answer.candidates] == [c.title for c in direct.candidates] != []
    assert context.trailers == [("x-request-id", "mine")]
    assert context.status is None


@pytest.mark.parametrize("query", [*ERRORS, "no such index"])
async def test_a_refusal_has_the_status_and_the_details_of_the_server(query: str) -> None:
    index = "nowhere" if query == "no such index" else ""
    request = pb.RetrieveRequest(query=query, index=index)
    async with running(FakeRetriever(errors=ERRORS)) as s:
        answer, context = await asked(s, request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await s.stub.Retrieve(request, metadata=(("x-request-id", "mine"),))
    error = caught.value
    assert (context.status, context.details) == (error.code(), error.details())
    assert dict(context.trailers) == dict(tuple(error.trailing_metadata()))
    assert answer == pb.RetrieveResponse()


@pytest.mark.parametrize(
    ("request_", "method", "max_bytes", "code", "details"),
    [
        (pb.RetrieveRequest(query="bug"), RETRIEVE, 2000, "INTERNAL", "internal error; request id mine"),
        (b"", OTHER, 2000, "UNIMPLEMENTED", f"there is no method {OTHER} here"),
        (pb.RetrieveRequest(query="x" * 2000), RETRIEVE, 2000, "RESOURCE_EXHAUSTED", TOO_LARGE),
        (b"\xff\xff\xff", RETRIEVE, 2000, "INVALID_ARGUMENT", None),
    ],
    ids=["a bug", "no method", "above the limit", "no message"],
)
async def test_what_is_no_answer_is_told_in_grpcs_words(
    request_: Any, method: str, max_bytes: int, code: str, details: str | None
) -> None:
    async with running(FakeRetriever(bugs={"bug": ZeroDivisionError("secret")})) as s:
        _, context = await asked(s, request_, method, max_bytes)
    assert context.status is grpc.StatusCode[code]
    if details is None:
        status = status_pb2.Status.FromString(dict(context.trailers)["grpc-status-details-bin"])
        assert status.details[0].type_url.endswith("BadRequest")
    else:
        assert context.details == details


async def test_a_reload_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    secret = new_token()
    tokens = tokens_in(tmp_path, line_of(Scope.ADMIN, secret))
    async with running(FakeRetriever(), token_file=tokens) as s:
        calls = dispatcher(s)
        unknown, known = RayContext(), RayContext(authorization=f"Bearer {secret}")
        for context in (unknown, known):
            await calls.answer(RELOAD, b"", context, index_pb.ReloadIndexResponse)
    assert unknown.status is grpc.StatusCode.UNAUTHENTICATED
    assert known.status is grpc.StatusCode.UNIMPLEMENTED
    assert "deploy again" in known.details


async def sent(*queries: str) -> AsyncIterator[bytes]:
    for query in queries:
        request = pb.RetrieveRequest(query=query)
        yield pb.RetrieveStreamRequest(id=query, request=request).SerializeToString()


async def test_a_stream_answers_each_query_and_each_error() -> None:
    async with running(FakeRetriever(errors=ERRORS)) as s:
        answers = [m async for m in dispatcher(s).stream(STREAM, sent("a", "field", "b"), RayContext())]
    assert sorted(m.id for m in answers) == ["a", "b", "field"]
    assert [m.error.message for m in answers if m.HasField("error")] == ["k: must be otherwise"]


async def test_a_stream_that_is_left_early_leaves_nothing_behind() -> None:
    async with running(FakeRetriever()) as s:
        stream = dispatcher(s).stream(STREAM, sent("a", "b", "c"), RayContext())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert len(s.server.methods.streams) == 0


async def test_a_refused_stream_sets_its_status() -> None:
    async with running(FakeRetriever(), load=False) as s:
        context = RayContext()
        with pytest.raises(grpc.aio.AbortError):
            await anext(dispatcher(s).stream(STREAM, sent("a"), context))
    assert context.status is grpc.StatusCode.UNAVAILABLE


def test_the_proxy_passes_messages_on_as_bytes() -> None:
    added: list[Any] = []
    add_services_to_server(MagicMock(), SimpleNamespace(add_generic_rpc_handlers=added.extend))
    services = ["genret.v1.RetrievalService", "genret.v1.IndexService", "grpc.health.v1.Health"]
    assert [one.service_name() for one in added] == services
    handlers = [h for one in added for h in one._method_handlers.values()]
    assert len(handlers) >= 10
    assert all(handler.request_deserializer is None for handler in handlers)
