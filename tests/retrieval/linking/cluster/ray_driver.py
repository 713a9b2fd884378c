"""A program that runs shards on a cluster with `RayRunner` and prints what it yields, a JSON line each.

Arguments: the cluster's address, then for every run a folder and a number of shards. What the folder has
records of is left out, as the coordinator of a run does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.linking.runners.ray_runner import RayRunner, recorded
from tests.retrieval.linking.cluster.fake_shard_worker import FakeShardWorker, job_of, some_shards


def run(address: str, folder: Path, count: int) -> dict[str, object]:
    job = job_of(folder)
    left = [shard for shard in some_shards(folder, count) if recorded(job, shard) is None]
    counted, shards = LinkCounts(), []
    print(json.dumps({"left": [shard.number for shard in left]}), flush=True)
    try:
        for result in RayRunner(2, address, open_worker=FakeShardWorker, num_retries=1).run(job, left):
            if isinstance(result, LinkCounts):
                counted.add(result)
            else:
                shards.append(result.shard)
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        return {"error": type(error).__name__, "text": str(error), "notes": notes, "shards": shards}
    return {"shards": shards, "counted": counted.num_mentions}


if __name__ == "__main__":
    address, *runs = sys.argv[1:]
    if len(runs) > 2:  # stay connected from run to run
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    for folder, count in zip(runs[::2], runs[1::2], strict=True):
        print(json.dumps(run(address, Path(folder), int(count))), flush=True)
