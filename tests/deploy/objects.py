"""Objects of Kubernetes by kind, and what must hold of those that deploy a server, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from genret.service.configuration.resolve import resolve
from genret.service.configuration.server_config import ServerConfig

Objects = dict[str, dict[str, Any]]
KINDS = {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget"}


def objects_in(text: str) -> Objects:
    found = [one for one in yaml.safe_load_all(text) if one]
    by_kind = {one["kind"]: one for one in found}
    assert len(by_kind) == len(found)
    return by_kind


def settings_in(folder: Path, objects: Objects) -> ServerConfig:
    path = folder / "genret.toml"
    path.write_text(objects["ConfigMap"]["data"]["genret.toml"])
    return resolve({}, None, {}, path).config


def pod_of(objects: Objects) -> tuple[dict[str, Any], dict[str, Any]]:
    """The specification of the pods, and of their container."""
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def check_fit(objects: Objects, config: ServerConfig, *checkpoints: Path) -> None:
    """Times, ports, files and labels of the objects fit each other and the settings."""
    pod, container = pod_of(objects)
    assert pod["terminationGracePeriodSeconds"] >= config.lame_duck_seconds + config.drain_seconds + 10
    readiness = container["readinessProbe"]
    noticed_s = readiness["periodSeconds"] * readiness["failureThreshold"]
    assert noticed_s * 2 <= config.lame_duck_seconds, "well within that time"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": config.port, "metrics": config.metrics.port}
    mounts = {Path(mount["mountPath"]): mount for mount in container["volumeMounts"]}
    named = (
        *(spec.path for spec in config.indexes),
        config.tls.certificate,
        config.tls.key,
        config.tls.client_ca,
        config.token_file,
    )
    for path in filter(None, (*named, *checkpoints)):
        assert any(mounts[above]["readOnly"] for above in path.parents if above in mounts), path
    settings = Path(container["args"][container["args"].index("--config") + 1])
    assert (mounts[settings.parent]["name"], mounts[Path("/tmp")]["name"]) == ("settings", "tmp")
    assert sorted(one["name"] for one in pod["volumes"]) == sorted(one["name"] for one in mounts.values())
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "genret"
    assert objects["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert objects[kind]["spec"]["selector"]["matchLabels"] == labels
    (port,) = objects["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports
