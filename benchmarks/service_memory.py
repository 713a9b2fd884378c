"""Memory of a server: the model, indexes of different sizes, and requests at the same time.

    python benchmarks/service_memory.py --index small.index --index large.index

For each index a server of its own is started and looked at when it is ready, after 200 requests one by one,
while so many clients ask at the same time, and three quarters of a minute later. Anonymous memory is what the
server needs; files that are mapped are the machine's page cache and may be given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from harness.load_generator import beside, closed_loop
from harness.report import benchmark, shown
from harness.sample_data import sample_queries
from harness.served_process import Footprint, ServedProcess, serving

from genret.retrieval.types import RetrieveRequest
from genret.service.client import AsyncRetrievalClient


async def peak_under(
    served: ServedProcess, client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], clients: int
) -> Footprint:
    """Return what the server held at most while clients asked for ten seconds."""
    seen: list[Footprint] = []

    async def look() -> None:
        while True:
            seen.append(await asyncio.to_thread(served.footprint))
            await asyncio.sleep(0.05)

    async with beside(look()):
        await closed_loop(client, requests, clients, 10)
    return max(seen, key=lambda footprint: footprint.anonymous_mib)


async def measure(served: ServedProcess, requests: Sequence[RetrieveRequest]) -> dict[str, Any]:
    """Look at one server before, after and under load."""
    figures: dict[str, Any] = {"ready": served.footprint()}
    async with AsyncRetrievalClient(served.address, timeout_s=120) as client:
        (index,) = await client.list_indexes()
        figures["titles"] = index.num_rows
        kv = [(await client.retrieve(request)).result.kv for request in requests[:200]]
        figures["kv_peak_kib"] = max(usage.peak_bytes for usage in kv) / 1024
        figures["used"] = served.footprint()
        for clients in (1, 16, 64):
            figures[f"{clients} clients"] = await peak_under(served, client, requests, clients)
        await asyncio.sleep(45)
        figures["idle"] = served.footprint()
    return figures


@benchmark("torch", "grpcio")
@click.option(
    "--index", "indexes", type=click.Path(path_type=Path, exists=True), multiple=True, required=True
)
@click.option("--k", type=int, default=10)
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure a server on each INDEX."""
    requests = [RetrieveRequest(query, k=options.k) for query in sample_queries()]
    figures = {}
    for index in options.indexes:
        with serving(index, start_seconds=600) as served:
            figures[index.name] = shown(index.name, asyncio.run(measure(served, requests)))
    return figures


if __name__ == "__main__":
    main()
