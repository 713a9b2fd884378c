"""What `genret deploy-ray` says and takes off when Ray Serve does not get as far as to serve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genret.service.configuration.server_config import IndexSpec, ServerConfig
from genret.service.errors import ServiceError
from genret.service.ray_serve.app import deploy, start_proxies
from genret.service.ray_serve.deployment import REFUSAL, ServePlan

pytest.importorskip("ray.serve")
PLAN = ServePlan(ServerConfig(indexes=(IndexSpec("titles", Path("/indexes/titles")),), insecure=True))
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


def test_one_that_served_before_is_left() -> None:
    serve = Serve(RuntimeError("Failed to update the deployments"), "genret")
    with pytest.raises(
        ServiceError, match=r"the index is broken\nthe application 'genret' that was there before"
    ):
        deploy(serve, PLAN, [].append)
    assert serve.asked == []


def test_an_interrupted_start_is_taken_off() -> None:
    serve = Serve(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        deploy(serve, PLAN, [].append)
    assert serve.asked == ["delete genret"]
