"""Connects to a Ray cluster or starts one, and checks that its nodes see the run's files."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genret.retrieval.errors import InputError, MissingExtraError, SourceError
from genret.retrieval.interruption import handled
from genret.retrieval.linking.output.folder import RUN_FILE, LinkingRunError

NAMESPACE = "genret-link"
_ADDRESS_VARIABLE = "RAY_ADDRESS"
_LOCAL = "local"  # as `ray.init` calls it
_REACH_SECONDS = 10.0
_CHECK_SECONDS = 120.0
_LOG = logging.getLogger(__name__)


def import_ray() -> Any:
    """Return the module `ray`, quiet; `MissingExtraError` where it is not installed."""
    # Read when ray is imported or started: no counting of uses, and no lines about what Ray may do one day.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A thread of Ray Data's that outlives the connection would otherwise start a cluster of its own.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of its C++ core, which writes to the terminal
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    for handler in logging.getLogger("ray.data").handlers:
        if type(handler).__module__.startswith("ray.") and not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.CRITICAL)  # all of it is in the log of Ray's session
    return ray


def is_local(address: str | None) -> bool:
    """Whether an address means a cluster that is started on this machine and ends with the process."""
    return (address or os.environ.get(_ADDRESS_VARIABLE) or _LOCAL) == _LOCAL


@contextmanager
def connected(
    ray: Any, address: str | None, num_cpus: float, runtime_env: Mapping[str, Any] | None
) -> Iterator[bool]:
    """Connect to a cluster for the block; a connection that the process has already is left as it is.

    Yields whether the cluster was started here, and so ends with the block: where the address is None and
    RAY_ADDRESS has none. Such a cluster has `num_cpus` CPUs, a count of workers, not of processors. `address`
    and `runtime_env` are those of `ray.init`. An `InputError` says that no cluster is at the address.
    """
    if ray.is_initialized():
        yield False
        return
    own = is_local(address)
    address = _LOCAL if own else address or os.environ[_ADDRESS_VARIABLE]
    _check_reachable(address)
    arguments: dict[str, Any] = {"num_cpus": math.ceil(num_cpus)} if own else {}
    try:
        # Ray sets handlers of its own: SIGTERM would end the process without tidying up.
        with handled(None, signal.SIGINT, signal.SIGTERM):
            ray.init(
                address=address,
                namespace=NAMESPACE,
                include_dashboard=False if own else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=dict(runtime_env) if runtime_env else None,
                **arguments,
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, reason_not_joined(error)) from error
    try:
        yield own
    finally:
        ray.shutdown()  # the actors of a driver that leaves end with it


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal() or not host:
        return  # a word such as "auto", or what Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from error


def _no_cluster(address: str, reason: str) -> InputError:
    return InputError("ray_address", f"no Ray cluster can be used at {address!r}: {reason}")


def reason_not_joined(error: BaseException) -> str:
    """Say why a cluster could not be joined; Ray's error says only that it could not."""
    reasons = [str(one) for one in causes(error)]
    if any("Authentication" in reason for reason in reasons):
        return "it asks for a token: set RAY_AUTH_MODE=token, and have the token in RAY_AUTH_TOKEN"
    return reasons[0]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def choose_resources(
    ray: Any, num_workers: int | None, num_cpus: float, num_gpus: float | None, wants_gpu: bool
) -> tuple[int, float]:
    """Return the number of workers, and the GPUs of each, by what the cluster has now.

    None workers are as many as fit by the CPUs (as Ray counts them) and GPUs of each; None GPUs: one where
    there are any and workers can use it. A fraction shares one.
    """
    there = ray.cluster_resources()
    gpus = float(there.get("GPU", 0.0))
    cpus = float(there.get("CPU", 0.0))
    if num_gpus is None:
        num_gpus = 1.0 if wants_gpu and gpus >= 1 else 0.0
    fitting = [math.floor(have / each) for have, each in ((cpus, num_cpus), (gpus, num_gpus)) if each > 0]
    most = min(fitting, default=1)
    wanted = num_workers or max(1, most)
    if wanted > most:
        _LOG.warning(
            "of %d workers %d fit: the cluster has %g CPUs and %g GPUs, a worker takes %g and %g; the others "
            "wait until it grows",
            wanted,
            most,
            cpus,
            gpus,
            num_cpus,
            num_gpus,
        )
    return wanted, num_gpus


def check_nodes(ray: Any, needed: Mapping[str, str], out: Path) -> None:
    """Refuse a cluster with a node that does not see what workers read, or does not share the output folder.

    `needed` are absolute paths, with the noun for each. What a node does not see is a SourceError; a node
    that cannot be asked, or has no genret, is a LinkingRunError.
    """
    # Named as a file of the run that is being written: what a killed run leaves, the next one removes.
    probe = out / f".{RUN_FILE}.probe-{secrets.token_hex(8)}.{os.getpid()}.tmp"
    content = secrets.token_hex(16)
    probe.write_text(content, encoding="utf-8")
    try:
        _ask_all(ray, (dict(needed), str(probe), content), "index, input and output")
    finally:
        probe.unlink(missing_ok=True)


def check_paths(ray: Any, needed: Mapping[str, str]) -> None:
    """Refuse a cluster with a node that does not see what is read; arguments and errors of `check_nodes`."""
    _ask_all(ray, (dict(needed), None, ""), "they")


def _ask_all(ray: Any, question: tuple[Any, ...], what: str) -> None:
    """Ask every node that workers may be put on `what_is_missing`."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    task = ray.remote(num_cpus=0, max_retries=1)(what_is_missing)
    asked = []
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        asked.append((node["NodeManagerAddress"], task.options(scheduling_strategy=there).remote(*question)))
    for address, answer in asked:
        try:
            missing = ray.get(answer, timeout=_CHECK_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise LinkingRunError(f"the node {address} has not answered in {_CHECK_SECONDS:g} s") from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise LinkingRunError(
                f"the node {address} cannot run genret ({reason}): it must be installed on every node, in "
                "the same version, or brought there by Ray's runtime environment"
            ) from error
        if missing is not None:
            raise SourceError(
                f"the node {address} {missing}; {what} must be in folders that all nodes share, under the "
                "same paths"
            )


def what_is_missing(needed: Mapping[str, str], probe: str | None, content: str) -> str | None:
    """Say what a node does not see; runs there. `probe` was just written into the output folder, if any."""
    for path, name in needed.items():
        if not os.path.exists(path):
            return f"does not see {name} {path}"
    if probe is None:
        return None
    folder = os.path.dirname(probe)
    try:
        with open(probe, encoding="utf-8") as file:
            same = file.read() == content
    except OSError:
        same = False
    if not same:
        return f"does not see the output folder {folder} as it is on the machine that started the run"
    written = f"{probe.removesuffix('.tmp')}.{os.getpid()}.tmp"
    try:
        with open(written, "w", encoding="utf-8") as file:
            file.write(content)
        os.unlink(written)
    except OSError as error:
        return f"cannot write to the output folder {folder}: {error.strerror or error}"
    return None
