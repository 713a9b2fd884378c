"""The figures as tables of Markdown, as they stand in RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from beam_search_figures.contest import OURS, PLAIN, PREFILLED


def tables(figures: dict[str, Any]) -> str:
    """Return a table for every section there is, in the order measured."""
    makers = {
        "titles": lambda found: _contest(found["cells"]),
        "upkeep": _upkeep,
        "free": _free,
        "ablation": _ablation,
        "trace": _trace,
        "prefix": _prefix,
    }
    return "\n\n".join(f"### {name}\n\n{makers[name](found)}" for name, found in figures.items()) + "\n"


def _contest(cells: Sequence[dict[str, Any]]) -> str:
    """Times, ratios and memory; what was not run says why below the table."""
    head = (
        "prompt / beams / queries",
        "ours, s (prefill + decode)",
        "`generate`, s (prefill + decode)",
        "over ours",
        "prompt run once, s (prefill + decode)",
        "over ours",
        "KV: ours / theirs, MB",
        "share",
    )
    rows, notes = [], []
    for cell in cells:
        place = f"{cell['prompt']} / {cell['beams']} / {cell['batch']}"
        row = [place, _seconds(cell[OURS])]
        for name in (PLAIN, PREFILLED):
            peer = cell[name]
            row += ["not run", ""] if "not_run" in peer else [_seconds(peer), f"**{peer['ratio'].text(1)}**"]
            if "not_run" in peer:
                notes.append(f"- {place}, {name}: {peer['not_run']}.")
        ours, theirs, computed = cell[OURS]["kv_bytes"], *_their_bytes(cell)
        row += [f"{ours / 1e6:.1f} / {theirs / 1e6:,.1f}{computed}", f"{ours / theirs:.3f}"]
        rows.append(row)
    return "\n".join([_table(head, rows), *([""] if notes else []), *notes])


def _free(found: dict[str, Any]) -> str:
    models = [(name, found[name]) for name in ("random", "default")]
    return "\n\n".join(f"{name} model\n\n{_contest(cells)}\n\n{_live(cells)}" for name, cells in models)


def _their_bytes(cell: dict[str, Any]) -> tuple[int, str]:
    """Return the bytes of a peer's cache, and whether that is computed."""
    for name in (PLAIN, PREFILLED):
        if "kv_bytes" in cell[name]:
            return cell[name]["kv_bytes"], ""
    return cell[PLAIN]["kv_bytes_computed"], " (computed)"


def _seconds(side: dict[str, Any]) -> str:
    parts = f"{side['prefill_s'].median:.2f} + {side['decode_s'].median:.2f}"
    return f"{side['total_s'].median:.2f} ({parts})"


def _live(cells: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            f"{cell['prompt']} / {cell['beams']}",
            f"{cell['live']['live_per_depth']:.2f}",
            f"{cell['live']['written_per_depth']:.2f}",
        ]
        for cell in cells
    ]
    return _table(("prompt / beams", "live at the end, per token of the text", "written"), rows)


def _upkeep(found: Sequence[dict[str, Any]]) -> str:
    parts = [name for name in found[0] if name not in ("setting", "ms_per_step")]
    rows = [
        [figure["setting"], f"{figure['ms_per_step']:.1f}", *(f"{figure[part]:.1%}" for part in parts)]
        for figure in found
    ]
    return _table(("prompt/beams/queries", "ms per step", *parts), rows)


def _ablation(found: dict[str, Any]) -> str:
    head = (
        "work",
        "collection",
        "KV peak, MB",
        "most slots",
        "saved tokens",
        "collections",
        "decode / never",
    )
    rows = [
        [
            f"{name}, {case['prompt']} / {case['beams']} / {case['batch']}",
            policy,
            f"{case[policy]['peak_bytes'] / 1e6:.1f}",
            f"{case[policy]['slots']:.0f}",
            f"{case[policy]['saved_tokens']:.0f}",
            str(case[policy]["collections"]),
            case[policy]["time_over_never"].text(),
        ]
        for name, case in found.items()
        if name != "agreement"
        for policy in ("never", "default", "every 4 steps")
    ]
    return _table(head, rows)


def _trace(found: Sequence[dict[str, Any]]) -> str:
    names = list(found[0]["curves"])
    rows = [
        [
            f"{panel['name']}, {panel['prompt']} / {panel['beams']}",
            *(f"{panel['curves'][name][-1] / 1e6:.2f}" for name in names),
        ]
        for panel in found
    ]
    return _table(("MB after the last step", *(name.replace("_", " ") for name in names)), rows)


def _prefix(found: Sequence[dict[str, Any]]) -> str:
    head = (
        "prefix + own tokens",
        "queries",
        "shared, s",
        "run again, s",
        "ratio",
        "KV per query, MB",
        "again, MB",
    )
    rows = [
        [
            f"{figure['prefix']} + {figure['own']}",
            str(figure["batch"]),
            figure["shared_s"].text(3),
            figure["again_s"].text(3),
            f"**{figure['ratio'].text(1)}**",
            f"{figure['shared_bytes'] / 1e6:.2f}",
            f"{figure['again_bytes'] / 1e6:.2f}",
        ]
        for figure in found
    ]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
