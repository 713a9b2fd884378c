"""Deploying on a cluster, and taking it off again."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from retrieval.errors import InputError, MissingExtraError
from retrieval.linking.runners.ray_cluster import check_paths, connected, import_ray
from service.errors import ServiceError
from service.ray_serve.deployment import REFUSAL, ServePlan

_CPUS_OF_PROXY_AND_CONTROLLER = 1


def run_deployment(
    plan: ServePlan,
    address: str | None,
    detach: bool,
    runtime_env: Mapping[str, Any] | None,
    say: Callable[[str], None],
) -> None:
    """Deploy, and unless told to detach stay until SIGTERM or Ctrl-C, then take it off.

    Args:
        plan: What is deployed.
        address: The cluster; None: the one in RAY_ADDRESS, else one is started on this machine.
        detach: Leave it running.
        runtime_env: What Ray brings to the nodes.
        say: Tells the user of its state.

    Raises:
        InputError: there is no such cluster, or it would end with this process.
        ServiceError: replicas do not start; says why.
    """
    ray = import_ray()
    serve = _import_serve()
    if detach and not (address or os.environ.get("RAY_ADDRESS")):
        raise InputError("detach", "needs a cluster that runs already: name it with --address")
    num_cpus = plan.num_replicas * plan.num_cpus + _CPUS_OF_PROXY_AND_CONTROLLER
    with connected(ray, address, num_cpus, runtime_env) as own:
        check_paths(ray, plan.paths())
        _deploy(serve, plan)
        where = f"port {plan.config.port} of every node with a replica"
        say(f"ready: application {plan.name!r}, {plan.num_replicas} replicas, on {where}")
        if detach:
            return
        try:
            _wait_for_signal()
        finally:
            say("taking the application off")
            serve.delete(plan.name)
            if own:
                serve.shutdown()
    say("stopped")


def _import_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("ray[serve]", "ray") from error
    return serve


def _deploy(serve: Any, plan: ServePlan) -> None:
    from ray.serve.config import ProxyLocation, gRPCOptions

    from service.ray_serve.app import application

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        proxy_location=ProxyLocation.EveryNode,
        http_options=plan.http_options(),
        grpc_options=gRPCOptions(**plan.grpc_options()),
        logging_config={"log_level": "WARNING"},
    )
    try:
        serve.run(
            application(plan.config, plan.deployment_options()),
            name=plan.name,
            route_prefix=plan.route_prefix,
        )
    except RuntimeError as error:
        text = str(error)
        serve.delete(plan.name)
        said = text.partition(REFUSAL)[2].splitlines()
        raise ServiceError(said[0] if said else f"the application does not start: {text}") from error


def _wait_for_signal() -> None:
    """Return at SIGTERM or SIGINT."""
    came = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: came.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        while not came.wait(1.0):  # without a limit a signal's handler would not run on every platform
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
