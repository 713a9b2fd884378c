"""The files of deploy/ fit the server they deploy: options, settings, paths, ports and times to stop."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from genret.service.configuration.resolve import resolve
from genret.service.configuration.server_config import ServerConfig
from genret.service.main import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (one for one in MANIFESTS if one["kind"] == kind)
    return found


def load(path: Path) -> ServerConfig:
    return resolve({}, None, {}, path).config


@pytest.fixture
def kubernetes_config(tmp_path: Path) -> ServerConfig:
    path = tmp_path / "genret.toml"
    path.write_text(manifest("ConfigMap")["data"]["genret.toml"])
    return load(path)


def assert_accepted(arguments: list[str]) -> None:
    """Check that `genret` knows the command and its options; the files named need not be there."""
    command, *options = arguments
    help_text = CliRunner().invoke(cli, [command, "--help"]).output
    flags = [option for option in options if option.startswith("--")]
    assert flags or command == "health"
    for flag in flags:
        assert re.search(rf"{flag}\b", help_text), f"genret {command} has no {flag}"


def test_the_example_settings_are_settings_of_a_server() -> None:
    config = load(DEPLOY / "genret.toml")
    assert config.tls.enabled
    assert config.auth.token_file is not None
    assert not config.insecure
    assert config.metrics.host == "127.0.0.1"


def test_what_the_example_leaves_out_is_settings_too(tmp_path: Path) -> None:
    text = (DEPLOY / "genret.toml").read_text()
    commented = re.compile(r"^# (\w+ = )", re.MULTILINE)
    assert len(commented.findall(text)) == 1
    path = tmp_path / "genret.toml"
    path.write_text(commented.sub(r"\1", text))
    assert load(path).tls.client_ca == Path("/etc/genret/tls/clients.crt")


def unit() -> dict[str, dict[str, list[str]]]:
    """Read the unit: sections of keys with all their values, as keys may be given several times."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in (DEPLOY / "genret.service").read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


def test_the_unit_starts_reloads_and_stops_the_server() -> None:
    service = unit()["Service"]
    executable, *arguments = shlex.split(*service["ExecStart"])
    assert executable.endswith("/bin/genret")
    assert_accepted(arguments)
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    config = load(DEPLOY / "genret.toml")
    assert int(*service["TimeoutStopSec"]) >= config.lame_duck_seconds + config.drain_seconds + 10
    assert service["Restart"] == ["on-failure"]


def test_the_unit_lets_the_server_read_and_write_what_it_needs_only() -> None:
    service = unit()["Service"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["User"] == ["genret"]
    readable = [Path(path.removeprefix("-")) for path in " ".join(service["ReadOnlyPaths"]).split()]
    config = load(DEPLOY / "genret.toml")
    tls = config.tls
    for path in (*(spec.path for spec in config.indexes), tls.certificate, tls.key, config.auth.token_file):
        assert any(path.is_relative_to(directory) for directory in readable), path
    cache = Path("/var/cache") / service["CacheDirectory"][0]
    for variable in service["Environment"]:
        value = variable.partition("=")[2]
        assert not value.startswith("/") or Path(value).is_relative_to(cache), variable


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "genret.service").read_text()
    here = tmp_path / "genret.service"
    here.write_text(text.replace("ExecStart=/opt/genret/bin/genret", "ExecStart=/bin/sh"))
    verify = ["systemd-analyze", "verify", str(here)]
    checked = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    here.write_text(here.read_text().replace("LimitNOFILE", "LimitNoFiles"))
    broken = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert "LimitNoFiles" in broken.stderr


def docker_instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def of(instruction: str) -> list[str]:
    return [rest for word, rest in docker_instructions() if word == instruction]


def copied() -> list[str]:
    return [name for rest in of("COPY") if not rest.startswith("--from") for name in rest.split()[:-1]]


def test_what_the_image_copies_exists_and_is_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert set(copied()) == allowed
    for name in copied():
        assert (ROOT / name).exists(), name


def test_what_the_wheel_is_made_of_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *(source.partition("/")[0] for source in wheel["force-include"])}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    assert needed <= set(copied())
    (extras,) = (rest.partition("=")[2] for rest in of("ARG") if rest.startswith("EXTRAS="))
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


def test_the_image_runs_a_server_as_nobody_in_particular() -> None:
    assert len(of("FROM")) == 2
    (user,) = of("USER")
    assert all(part.isdigit() and int(part) >= 10_000 for part in user.split(":"))
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert of("ENTRYPOINT") == ['["genret"]']
    assert_accepted(yaml.safe_load(*of("CMD")))
    check = of("HEALTHCHECK")[0].partition("CMD ")[2]
    executable, *arguments = yaml.safe_load(check)
    assert executable == "genret"
    assert_accepted(arguments)
    assert "HF_HUB_OFFLINE=1" in " ".join(of("ENV"))


def container() -> dict[str, Any]:
    (only,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_the_manifests_are_named_and_of_their_kinds() -> None:
    assert [one["kind"] for one in MANIFESTS] == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget"]
    assert {one["metadata"]["name"] for one in MANIFESTS} == {"genret"}


def test_the_pod_is_stopped_in_time_and_probed_where_the_server_listens(
    kubernetes_config: ServerConfig,
) -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    needed = kubernetes_config.lame_duck_seconds + kubernetes_config.drain_seconds
    assert pod["terminationGracePeriodSeconds"] >= needed + 10
    assert_accepted(container()["args"])
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"grpc": kubernetes_config.port, "metrics": kubernetes_config.metrics.port}
    for probe, path in (("startup", "/readyz"), ("readiness", "/readyz"), ("liveness", "/livez")):
        assert container()[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "metrics"}
    readiness = container()["readinessProbe"]
    noticed_s = readiness["periodSeconds"] * readiness["failureThreshold"]
    assert noticed_s * 2 <= kubernetes_config.lame_duck_seconds, "well within that time"


def test_what_the_settings_name_is_mounted_in_the_pod(kubernetes_config: ServerConfig) -> None:
    mounts = {Path(mount["mountPath"]): mount for mount in container()["volumeMounts"]}
    tls, token_file = kubernetes_config.tls, kubernetes_config.auth.token_file
    for path in (*(spec.path for spec in kubernetes_config.indexes), tls.certificate, tls.key, token_file):
        assert mounts[path.parent]["readOnly"], path
    settings = Path(container()["args"][container()["args"].index("--config") + 1])
    assert mounts[settings.parent]["name"] == "settings"
    volumes = {volume["name"] for volume in manifest("Deployment")["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == volumes
    assert mounts[Path("/tmp")]["name"] == "tmp"


def test_the_pod_has_no_privileges(kubernetes_config: ServerConfig) -> None:
    assert kubernetes_config.tls.enabled
    security = container()["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (user,) = of("USER")
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user


def test_labels_select_the_pods() -> None:
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    (port,) = manifest("Service")["spec"]["ports"]
    assert port["targetPort"] in {port["name"] for port in container()["ports"]}
