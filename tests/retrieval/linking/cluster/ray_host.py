"""A program that holds a Ray cluster of this machine until its input ends; prints the cluster's address."""

from __future__ import annotations

import logging
import sys

import ray

if __name__ == "__main__":
    context = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=100 * 2**20,
        _temp_dir=sys.argv[1],
    )
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()
