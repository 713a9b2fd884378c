"""What the Helm chart renders: valid objects whose parts fit each other, whatever the values."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.objects import KINDS, Objects, check_fit, objects_in, pod_of, settings_in

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "genret"
_FETCHED = ROOT / ".genret" / "helm" / "helm"
HELM = shutil.which("helm") or (str(_FETCHED) if _FETCHED.exists() else None)

pytestmark = pytest.mark.skipif(HELM is None, reason="there is no helm; .ci/helm fetches one")

# The Prometheus operator's own kinds; the API has no schema of them.
OPERATORS = {"PodMonitor", "PrometheusRule"}


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def template(folder: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    path = folder / "values.json"  # JSON is YAML, too
    path.write_text(json.dumps(values))
    return helm("template", "shop", CHART, "--values", path)


def rendered(folder: Path, values: dict[str, Any]) -> Objects:
    """Return what values make of the chart."""
    ran = template(folder, values)
    assert ran.returncode == 0, ran.stderr
    return objects_in(ran.stdout)


def test_the_manifests_are_what_the_chart_renders() -> None:
    ran = helm("template", "genret", CHART)
    assert ran.returncode == 0, ran.stderr
    kept = (ROOT / "deploy" / "kubernetes.yaml").read_text()
    # Versions of helm put different empty lines between objects.
    lines, expected = ([line for line in text.splitlines() if line.strip()] for text in (kept, ran.stdout))
    assert lines == expected, "make manifests renews deploy/kubernetes.yaml"


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    ran = helm("lint", "--strict", CHART)
    assert ran.returncode == 0, ran.stdout + ran.stderr


OPEN = {"tls": {"secret": ""}, "tokens": {"secret": ""}}
OWN_MODEL = {"model": {"checkpoint": "tuned/v2", "claim": "models"}}
ONLINE = {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}], "imagePullSecrets": [{"name": "registry"}]}
MUTUAL = {"tls": {"clientCa": "ca.crt"}}
HUB_MODEL = {"model": {"checkpoint": "Qwen/Qwen3-0.6B", "claim": ""}, **MUTUAL, **ONLINE}
PINNED = {"image": {"tag": "sha256:" + "0" * 64}, "replicas": 1}
PATIENT = {"shutdown": {"lameDuckSeconds": 30, "drainSeconds": 300}, "startSeconds": 1200}
TRACED = {"settings": '[tracing]\nendpoint = "http://collector:4317"\n'}
WATCHED = {"podMonitor": {"enabled": True, "labels": {"team": "a"}}, "alerts": {"enabled": True}}
LARGE = {"resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": 1}}, **WATCHED}


@pytest.mark.parametrize(
    "values", [{}, OPEN, OWN_MODEL, HUB_MODEL, PINNED, PATIENT, TRACED, WATCHED, LARGE, OPEN | OWN_MODEL]
)
def test_whatever_the_values_the_objects_are_valid_and_fit_each_other(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    objects = rendered(tmp_path, values)
    assert set(objects) == KINDS | (OPERATORS if "alerts" in values else set())
    for kind, one in objects.items():
        assert one["metadata"]["name"] == "shop"
        if kind not in OPERATORS:
            kubernetes_validate.validate(one, "1.34", strict=True)
    config = settings_in(tmp_path, objects)
    claimed = values.get("model", {}).get("claim")
    check_fit(objects, config, *[Path(str(spec.checkpoint)) for spec in config.models if claimed])


def test_values_reach_what_they_name(tmp_path: Path) -> None:
    objects = rendered(tmp_path, OWN_MODEL | PINNED | PATIENT | TRACED | MUTUAL | ONLINE)
    pod, container = pod_of(objects)
    assert {"env": container["env"], "imagePullSecrets": pod["imagePullSecrets"]} == ONLINE
    assert objects["Deployment"]["spec"]["replicas"] == 1
    assert container["image"] == "genret@sha256:" + "0" * 64
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1200
    config = settings_in(tmp_path, objects)
    assert str(config.models[0].checkpoint) == "/srv/genret/models/tuned/v2"
    assert config.tracing.endpoint == "http://collector:4317"
    assert (config.lame_duck_seconds, config.drain_seconds) == (30, 300)
    assert config.tls.client_ca == Path("/etc/genret-tls/ca.crt")
    assert not settings_in(tmp_path, rendered(tmp_path, OPEN)).tls.enabled


def test_other_settings_make_other_pods(tmp_path: Path) -> None:
    one, other = (
        rendered(tmp_path, values)["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        for values in ({}, TRACED)
    )
    assert one["checksum/settings"] != other["checksum/settings"]


def test_the_alert_for_memory_follows_the_limit(tmp_path: Path) -> None:
    kept = yaml.safe_load((CHART / "alerts.yaml").read_text())
    same, large = (rendered(tmp_path, values)["PrometheusRule"]["spec"] for values in (WATCHED, LARGE))
    assert same == kept
    changed = {
        rule["alert"]: rule["expr"]
        for rule, before in zip(large["groups"][0]["rules"], kept["groups"][0]["rules"], strict=True)
        if rule != before
    }
    bound = f"> 0.8 * {64 << 30}"
    assert changed == {"GenretMemoryHigh": f'process_resident_memory_bytes{{job="genret"}} {bound}'}


def test_the_monitor_finds_the_pods_under_the_job_that_alerts_expect(tmp_path: Path) -> None:
    objects = rendered(tmp_path, WATCHED)
    monitor, template_ = objects["PodMonitor"], objects["Deployment"]["spec"]["template"]
    labels = template_["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert labels[monitor["spec"]["jobLabel"]] == "genret"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in template_["spec"]["containers"][0]["ports"]}
    assert monitor["metadata"]["labels"]["team"] == "a"
    # Scraped by one of them, not by both.
    assert "prometheus.io/scrape" not in template_["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"resources": {"limits": {"memory": "4096Mi"}}}, "memory"),
        ({"shutdown": {"lameDuckSeconds": 1}}, "lameDuckSeconds"),
        ({"model": {"claim": "models"}}, "checkpoint"),
        ({"model": {"claim": "models", "checkpoint": "/srv/other"}}, "checkpoint"),
        ({"index": {"path": "/products.index"}}, "path"),
        ({"index": {"path": 'a"b'}}, "path"),
        ({"replicas": "two"}, "replicas"),
        ({"replica": 2}, "replica"),
        (OPEN | {"tls": {"secret": "", "clientCa": "ca.crt"}}, "clientCa"),
        ({"settings": '[limits]\n[ tls ]\nclient_ca = "/x"'}, "[tls] is a table that the chart writes"),
        ({"settings": '[indexes."products"]\ntop_k = 3'}, "[indexes.products]"),
    ],
)
def test_values_that_make_no_server_are_refused_by_name(
    tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    ran = template(tmp_path, values)
    assert ran.returncode != 0
    assert named in ran.stderr
