"""Which runner links a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError
from retrieval.linking.counts import LinkCounts
from retrieval.linking.runners.local import InProcessRunner, LocalRunner
from retrieval.linking.runners.runner import OpenWorker, Runner
from retrieval.linking.shard_worker import ShardWorker

RUNNERS = ("local", "ray")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Who links.

    Attributes:
        name: "local": processes of this machine; "ray": actors of a Ray cluster.
        num_workers: How many; None: one per core this process may use, or one where a GPU computes. One
            local worker is this process.
        address: Of the Ray cluster; None: one is started on this machine.
        open_worker: Makes a worker, where it works; a function or class that can be imported there.
    """

    name: str = "local"
    num_workers: int | None = None
    address: str | None = None
    open_worker: OpenWorker = ShardWorker

    def __post_init__(self) -> None:
        if self.name not in RUNNERS:
            raise InputError("runner", f"must be one of {list(RUNNERS)}, got {self.name!r}")
        if self.num_workers is not None and self.num_workers < 1:
            raise InputError("workers", f"must be at least 1, got {self.num_workers}")
        if self.address is not None and self.name != "ray":
            raise InputError("ray_address", "needs the runner ray")


def check_runner(options: RunnerOptions) -> None:
    """Refuse a runner that is not there, before any work is done.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    if options.name == "ray":
        from retrieval.linking.runners.ray_cluster import import_ray

        import_ray()


def choose_runner(
    options: RunnerOptions, num_shards: int, device: str, report: Callable[[LinkCounts], None]
) -> Runner:
    """Return a runner.

    Args:
        options: What was asked for.
        num_shards: Shards to link.
        device: Where the model computes.
        report: Gets progress of a runner that has no other way to tell.
    """
    if options.name == "ray":
        from retrieval.linking.runners.ray_runner import RayRunner  # says on running when Ray is missing

        return RayRunner(options.num_workers, options.address, open_worker=options.open_worker)
    num_workers = min(options.num_workers or _usual_workers(device), num_shards)
    if num_workers == 1:
        return InProcessRunner(report, options.open_worker)
    return LocalRunner(num_workers, options.open_worker)


def _usual_workers(device: str) -> int:
    if device == "cpu" or (device == "auto" and not _has_gpu()):
        return len(os.sched_getaffinity(0))
    return 1  # one model fills a GPU


def _has_gpu() -> bool:
    if not any(Path(device).exists() for device in _GPU_DEVICES):
        return False  # without the import of torch, which takes a second
    import torch

    return torch.cuda.is_available()
