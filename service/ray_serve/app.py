"""Builds the Ray Serve application, deploys it on a cluster, and removes it again.

Files of `serve deploy` name `build`, for which Ray's controller imports this module. Ray and the replica are
imported in functions only.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from genret.retrieval.errors import InputError, MissingExtraError
from genret.retrieval.interruption import handled
from genret.retrieval.linking.runners.ray_cluster import check_paths, connected, import_ray, is_local
from genret.service.configuration.resolve import resolve
from genret.service.configuration.server_config import ServerConfig
from genret.service.errors import ServiceError
from genret.service.ray_serve.deployment import DEPLOYMENT, REFUSAL, ServePlan, with_absolute_paths


def build(args: Mapping[str, Any]) -> Any:
    """Return the application; see `configuration_of`."""
    return application(configuration_of(args), {})


def application(config: ServerConfig, options: Mapping[str, Any]) -> Any:
    """Return the application of a configuration, with Serve's options of the deployment."""
    from ray import serve

    from genret.service.ray_serve.replica import GenretReplica

    return serve.deployment(name=DEPLOYMENT, **options)(GenretReplica).bind(config)


def configuration_of(args: Mapping[str, Any]) -> ServerConfig:
    """Return the configuration of either `settings`, the text of a file, or `config`, its path on every node.

    Raises:
        InputError: neither or both are given.
        ConfigurationError: the settings are wrong; names every mistake.
    """
    given = sorted(set(args) & {"settings", "config"})
    if len(given) != 1 or len(args) != 1:
        raise InputError("args", f"must have either settings or config, got {sorted(args)}")
    if given == ["config"]:
        return resolve({}, None, {}, Path(os.fspath(args["config"]))).config
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.toml"
        file.write_text(args["settings"], encoding="utf-8")
        return resolve({}, None, {}, file).config


_CPUS_OF_PROXY_AND_CONTROLLER = 1


def run_deployment(plan: ServePlan, address: str | None, detach: bool, say: Callable[[str], None]) -> None:
    """Deploy and, unless told to detach, wait for SIGTERM or Ctrl-C, then remove the application.

    Without an address the cluster is that of RAY_ADDRESS, else one is started on this machine.

    Raises:
        InputError: there is no such cluster, or it would end with this process.
        ServiceError: replicas do not start; gives the reason.
    """
    ray = import_ray()
    serve = _import_serve()
    if detach and is_local(address):
        raise InputError("detach", "needs a cluster that runs already: name it with --address")
    num_cpus = plan.num_replicas * plan.num_cpus + _CPUS_OF_PROXY_AND_CONTROLLER
    with connected(ray, address, num_cpus, runtime_env=None) as own:
        check_paths(ray, plan.paths())
        start_proxies(ray, serve, plan)
        deploy(serve, plan, say)
        replicas = "1 replica" if plan.num_replicas == 1 else f"{plan.num_replicas} replicas"
        where = f"port {plan.config.port} of every node with a replica"
        say(f"ready: application {plan.name!r}, {replicas}, on {where}")
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


def start_proxies(ray: Any, serve: Any, plan: ServePlan) -> None:
    """Start Serve on the cluster unless it runs already; ServiceError has the reason of a failure."""
    from ray.serve.config import ProxyLocation, gRPCOptions

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        serve.start(
            proxy_location=ProxyLocation.EveryNode,
            http_options=plan.http_options(),
            grpc_options=gRPCOptions(**plan.grpc_options()),
            logging_config={"log_level": "WARNING"},
        )
    except ray.exceptions.RayError as error:
        serve.shutdown()  # it would keep the ports that it cannot have
        raise ServiceError(f"Serve's proxy does not start: {str(error).strip().splitlines()[-1]}") from error


def deploy(serve: Any, plan: ServePlan, say: Callable[[str], None]) -> None:
    """Deploy; a new application that does not start, or is interrupted, is removed again.

    An application that served under the name before keeps the replicas that Ray has not replaced.

    Raises:
        ServiceError: replicas do not start; gives the reason.
    """
    is_new = plan.name not in serve.status().applications
    made = application(with_absolute_paths(plan.config), plan.deployment_options())
    try:
        serve.run(made, name=plan.name, route_prefix=plan.route_prefix)
    except BaseException as error:
        why = _why(serve, plan.name, str(error), is_new) if isinstance(error, RuntimeError) else None
        if is_new:
            say("taking the application off")
            serve.delete(plan.name)
        if why is not None:
            raise ServiceError(why) from error
        raise


def _why(serve: Any, name: str, said: str, is_new: bool) -> str:
    """Return why an application does not start, from the reports on it and on its replicas."""
    status = serve.status().applications.get(name)
    told = [said, *(one.message for one in status.deployments.values())] if status else [said]
    refusals = [text.partition(REFUSAL)[2].splitlines()[0] for text in told if REFUSAL in text]
    why = refusals[0] if refusals else f"the application does not start: {said}"
    if is_new:
        return why
    return (
        f"{why}\nthe application {name!r} that was there before keeps the replicas that Ray had not replaced "
        "yet; deploy again to put it right"
    )


def _wait_for_signal() -> None:
    came = threading.Event()
    with handled(lambda *_: came.set(), signal.SIGTERM, signal.SIGINT):
        while not came.wait(1.0):  # without a limit signal handlers would not run on every platform
            pass
