"""Plans a deployment on Ray Serve: its replicas, their resources, and the proxy's port. Imports no Ray."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genret.retrieval.arguments import check_least, integer
from genret.retrieval.errors import InputError, MissingExtraError
from genret.service.configuration.server_config import ServerConfig
from genret.service.configuration.settings import Key
from genret.service.configuration.sources import Origin, config_text

DEFAULT_APPLICATION = "genret"
DEFAULT_HTTP_PORT = 8000
DEPLOYMENT = "Genret"
BUILDER = "genret.service.ray_serve.app:build"
# Import path of the function that adds the services to a proxy's gRPC server.
SERVICER_FUNCTION = "genret.service.ray_serve.proxied_services.add_services_to_server"
REFUSAL = "genret cannot serve: "  # marks the reason in Ray's report of a replica that does not start
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_MIN_ONGOING = 1024
_HEALTH_CHECK_PERIOD_S = 5.0
_HEALTH_CHECK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ServePlan:
    """A deployment.

    Raises:
        InputError: a value is out of range, or the configuration needs more than a proxy does.
    """

    config: ServerConfig  # configuration of every replica; its port is the proxies'
    # Name of the application; calls name it in their metadata as `application`
    name: str = DEFAULT_APPLICATION
    num_replicas: int = 1  # number of replicas
    num_cpus: float = 1.0  # CPUs of a replica, as Ray counts them
    num_gpus: float = 0.0  # GPUs of a replica; a fraction shares one
    # Port of Serve's HTTP proxy, which Ray starts as well and which serves nothing here
    http_port: int = DEFAULT_HTTP_PORT

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InputError("name", f"must be made of A-Z a-z 0-9 . _ -, got {self.name!r}")
        check_least(self, num_replicas=1)
        for name, value in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus)):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(name, f"must be at least 0, got {value:g}")
        if not 1 <= self.config.port <= 65_535:
            raise InputError("port", "Ray must be told a port, 0 picks none")
        integer("http_proxy_port", self.http_port, 1, 65_535)
        _check_proxied(self.config)

    def deployment_options(self) -> dict[str, Any]:
        """Return Serve's options of the deployment, as in its API and its files."""
        return {
            "num_replicas": self.num_replicas,
            # Replicas refuse by work, with a time to come again; below this Serve would hold calls back.
            "max_ongoing_requests": max(_MIN_ONGOING, 2 * self.config.queue.max_requests),
            "graceful_shutdown_timeout_s": max(1.0, self.config.drain_seconds),
            "health_check_period_s": _HEALTH_CHECK_PERIOD_S,
            "health_check_timeout_s": _HEALTH_CHECK_TIMEOUT_S,
            "ray_actor_options": {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus},
        }

    @property
    def route_prefix(self) -> str:
        """Path on the HTTP proxy: nothing is served there, but gRPC finds no application without one."""
        return f"/{self.name}"

    def grpc_options(self) -> dict[str, Any]:
        """Return the options of Serve's gRPC proxies."""
        return {"port": self.config.port, "grpc_servicer_functions": [SERVICER_FUNCTION]}

    def http_options(self) -> dict[str, Any]:
        """Return the options of Serve's HTTP proxies."""
        return {"host": "127.0.0.1", "port": self.http_port}

    def serve_config(self, origins: Mapping[Key, Origin]) -> dict[str, Any]:
        """Return the plan as `serve deploy` reads it; `origins` become comments on the settings."""
        return {
            "proxy_location": "EveryNode",
            "http_options": self.http_options(),
            "grpc_options": self.grpc_options(),
            "applications": [
                {
                    "name": self.name,
                    "route_prefix": self.route_prefix,
                    "import_path": BUILDER,
                    "args": {"settings": config_text(self.config, origins)},
                    "deployments": [{"name": DEPLOYMENT, **self.deployment_options()}],
                }
            ],
        }

    def paths(self) -> dict[str, str]:
        """Return the absolute paths that replicas read, with what each is."""
        config = with_absolute_paths(self.config)
        read = {str(spec.path): "the index" for spec in config.indexes}
        read |= {str(spec.path): "the schema" for spec in config.schemas}
        checkpoints = [path for spec in config.models for path in (spec.checkpoint, spec.draft) if path]
        read |= {path: "the model" for path in checkpoints if Path(path).is_absolute()}
        if config.token_file is not None:
            read[str(config.token_file)] = "the token file"
        return read


def with_absolute_paths(config: ServerConfig) -> ServerConfig:
    """Return a configuration that does not depend on a replica's working directory."""
    return replace(
        config,
        indexes=tuple(replace(spec, path=spec.path.absolute()) for spec in config.indexes),
        schemas=tuple(replace(spec, path=spec.path.absolute()) for spec in config.schemas),
        models=tuple(
            replace(spec, checkpoint=_absolute(spec.checkpoint), draft=_absolute(spec.draft))
            for spec in config.models
        ),
        token_file=config.token_file and config.token_file.absolute(),
    )


def _absolute(checkpoint: str | None) -> str | None:
    """Return the absolute path of an existing checkpoint; others are ids of the hub."""
    if checkpoint is None or not Path(checkpoint).exists():
        return checkpoint
    return str(Path(checkpoint).absolute())


def _check_proxied(config: ServerConfig) -> None:
    """Refuse settings that a proxy would ignore."""
    if config.http.port is not None:
        raise InputError("http_port", "is not served behind Ray Serve's proxy; use genret serve for it")
    if config.metrics.port is not None:
        raise InputError(
            "metrics_port", "replicas of one node cannot share a port; Ray exports metrics of its own"
        )
    if config.tls.enabled:
        raise InputError(
            "tls_cert", "Serve's proxy ends the connection: it encrypts as the cluster does, by RAY_USE_TLS"
        )
    if not config.insecure:
        raise InputError(
            "insecure", "Serve's proxies listen on all addresses of their nodes, unencrypted: this allows it"
        )


_HEAD = """\
# A deployment of genret on Ray Serve: serve deploy FILE.
# The cluster's nodes need genret itself, and the paths below.
"""


def serve_file(plan: ServePlan, origins: Mapping[Key, Origin]) -> str:
    """Return a plan as the text of a file for `serve deploy`, with comments on the sources of settings.

    Raises:
        MissingExtraError: PyYAML, which comes with Ray, is not installed.
    """
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("yaml", "ray") from error

    class Dumper(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]
        """Writes texts of several lines as blocks."""

    def block(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, block)
    content = plan.serve_config(origins)
    text: str = yaml.dump(content, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)
    return _HEAD + text
