"""Renders scores of titles: a table for people, tab-separated lines for pipes, JSON Lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from genret.service.commands.render_answers import shared

if TYPE_CHECKING:
    from rich.console import RenderableType

    from genret.service.client.reply import ScoreReply

_WHITESPACE = str.maketrans({"\t": " ", "\n": " ", "\r": " "})


def best_first(reply: ScoreReply) -> ScoreReply:
    """Return the scores by falling probability; those that have none last, equal ones in the order given."""
    ordered = sorted(reply.result.scores, key=lambda s: (s.logprob is None, -(s.logprob or 0.0)))
    return replace(reply, result=replace(reply.result, scores=tuple(ordered)))


def as_lines(reply: ScoreReply) -> Iterator[str]:
    """Yield a line per title: title, logprob and probability (or nothing), tokens, ids, their shares."""
    for score in reply.result.scores:
        figures = ("", "") if score.logprob is None else (f"{score.logprob:.6f}", f"{score.probability:.6f}")
        shares = ",".join(f"{share:.6f}" for share in score.entity_shares)
        cells = (score.title, *figures, str(score.num_tokens), ",".join(score.entity_ids), shares)
        yield "\t".join(cell.translate(_WHITESPACE) for cell in cells)


def as_json(reply: ScoreReply) -> Iterator[str]:
    """Yield one line of JSON per title."""
    for score in reply.result.scores:
        document = {
            "query": reply.result.query,
            "title": score.title,
            "logprob": score.logprob,
            "probability": None if score.logprob is None else score.probability,
            "num_tokens": score.num_tokens,
            "entity_ids": list(score.entity_ids),
            "entity_shares": list(score.entity_shares),
        }
        yield json.dumps(document, ensure_ascii=False)


def as_table(reply: ScoreReply) -> RenderableType:
    """Return a rich table of the titles, with what it took below it."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    result = reply.result
    table = Table(title=Text(result.query, style="bold"), title_justify="left")
    table.add_column("Title", overflow="fold")
    for name in ("log P", "Among these", "Tokens"):
        table.add_column(name, justify="right")
    table.add_column("Entity", overflow="fold")
    for score in result.scores:
        is_scored = score.logprob is not None
        figures = (f"{score.logprob:.2f}", f"{score.probability:.1%}") if is_scored else ("too long", "")
        ids = shared(score.entity_ids, score.entity_shares) or "none"
        cells = (score.title, *figures, str(score.num_tokens), ids)
        table.add_row(*(Text(cell) for cell in cells))  # Text, so that brackets are not read as markup
    took = f"{reply.total_ms:.0f} ms, {reply.queue_ms:.0f} of them waiting"
    caption = f"{result.num_nodes:,} tokens computed behind the prompt; {took}; index {reply.index.name}"
    return Group(table, Padding(Text(caption, style="dim"), (0, 0, 1, 0)))
