"""Records the draws of DISC in traces: from the explored tree, once all were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from genret.decoding.disc.draws import DecidedDraws, DrawBatch, Draws
from genret.decoding.disc.tree_proposer import ExploredDepth, TreeProposer
from genret.decoding.params import DiscParams
from genret.decoding.trace import ROOT, Trace, TraceDraw

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


def check_recordable(params: Sequence[DiscParams], traces: Sequence[Trace | None] | None) -> dict[int, Trace]:
    """Return the traces by query; ValueError for lengths that differ, or draws that are not plain."""
    if traces is not None and len(traces) != len(params):
        raise ValueError(f"traces must have one entry per query ({len(params)}), got {len(traces)}")
    recorded = {query: trace for query, trace in enumerate(traces or ()) if trace is not None}
    if recorded and any(p.adaptive or p.beam_size > 1 or p.stops_early for p in params):
        raise ValueError("only draws that neither adapt nor keep several prefixes nor stop early are traced")
    return recorded


class _HostLevel(NamedTuple):
    """The nodes and edges of one depth on the host."""

    logprob: _Floats  # Log-probability of every edge. Shape: (E,), float64
    child: _Ints  # Node that every edge leads to, -1 if it was not computed. Shape: (E,), int64
    mass: _Floats  # Probability of all edges of every node. Shape: (N,), float64
    degree: _Ints  # Edges of every node. Shape: (N,), int64

    @classmethod
    def of(cls, level: ExploredDepth) -> _HostLevel:
        edges = level.edges
        mass = edges.logprob.new_zeros(len(level)).index_add(0, edges.owner, edges.logprob.exp())
        degree = torch.bincount(edges.owner, minlength=len(level))
        return cls(*(part.cpu().numpy() for part in (edges.logprob, level.child, mass, degree)))


def record_draws(
    batch: DrawBatch, proposer: TreeProposer, verdicts: Sequence[DecidedDraws], traces: Mapping[int, Trace]
) -> None:
    """Write the draws of some queries into their traces.

    `verdicts` are the decided draws of each run of the proposer, which kept their ways.
    """
    levels = [_HostLevel.of(level) for level in proposer.levels]
    is_counted = batch.top_m is None
    for query, trace in traces.items():
        _expand(trace, ROOT, levels[0], query, is_counted)
    for verdict, way in zip(verdicts, proposer.ways, strict=True):
        draws = verdict.draws
        taken = zip(draws.tokens, way, strict=False)  # a walk that ends at once leaves no tokens
        steps = [torch.stack(pair).cpu().numpy() for pair in taken]
        ends = _ends(batch, draws, steps, levels, traces)
        for query, draw in _draws(batch, verdict, ends):
            if draw.node >= 0:
                traces[query].draws.append(draw)
    for trace in traces.values():
        trace.draws.sort(key=lambda draw: (draw.sample, draw.number))


def _ends(
    batch: DrawBatch,
    draws: Draws,
    steps: Sequence[_Ints],
    levels: Sequence[_HostLevel],
    traces: Mapping[int, Trace],
) -> dict[int, int]:
    """Enter the written tokens of the traced queries' draws; return the node at which each ended, -1 if it
    was left out.

    `steps` are tokens (-1 for none) and edges of the draws, by depth. Each of shape (2, D).
    """
    rows = batch.constraint.row(draws.state).tolist()
    finished = draws.finished.tolist()
    ends: dict[int, int] = {}
    for index, query in enumerate(draws.query.tolist()):
        if query not in traces:
            continue
        trace, place, total = traces[query], ROOT, 0.0
        for depth, (tokens, edges) in enumerate(steps):
            token, edge = int(tokens[index]), int(edges[index])
            if token < 0:
                break
            total += float(levels[depth].logprob[edge])
            child = int(levels[depth].child[edge])
            if child >= 0:
                place = trace.enter(place, token, total, "expanded")
                _expand(trace, place, levels[depth + 1], child, batch.top_m is None)
            elif finished[index]:
                place = trace.enter(place, token, total, "finished", rows[index])
            else:
                place = trace.enter(place, token, total, "pruned")
        ends[index] = place
    return ends


def _expand(trace: Trace, place: int, level: _HostLevel, node: int, is_counted: bool) -> None:
    trace.expand(place, float(level.mass[node]), int(level.degree[node]) if is_counted else None)


def _draws(batch: DrawBatch, verdict: DecidedDraws, ends: Mapping[int, int]) -> list[tuple[int, TraceDraw]]:
    """The draws with known ends, with their queries."""
    draws, chosen = verdict.draws, set(verdict.winners.values())
    queries, samples, numbers = (column.tolist() for column in (draws.query, draws.sample, draws.number))
    weights, bounds = draws.log_weight.tolist(), draws.log_bound.tolist()
    finished, accepted = draws.finished.tolist(), verdict.accepted.tolist()
    found = []
    for index, node in ends.items():
        before = batch.params[queries[index]].num_draws if verdict.is_second else 0
        is_judged = finished[index] and not verdict.is_second
        draw = TraceDraw(
            sample=samples[index],
            number=numbers[index] + before,
            node=node,
            valid_mass=math.exp(weights[index]),
            acceptance=math.exp(weights[index] - bounds[index]) if is_judged else 0.0,
            accepted=accepted[index],
            chosen=index in chosen,
        )
        found.append((queries[index], draw))
    return found
