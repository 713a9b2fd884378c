"""Renders JSON answers: with their entities for people, as a line for pipes, as JSON Lines for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from genret.service.errors import CallError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from genret.retrieval.answers.answer_types import AnswerEntity
    from genret.service.client.reply import AnswerReply


def shared(entity_ids: Sequence[str], shares: Sequence[float]) -> str:
    """Return ids of entities, with the share of each where there are several and it is known."""
    if len(entity_ids) == 1 or len(shares) != len(entity_ids):
        return ", ".join(entity_ids)
    return ", ".join(f"{one} ({share:.0%})" for one, share in zip(entity_ids, shares, strict=True))


def as_line(reply: AnswerReply) -> str:
    """Return the document on one line; text that is on one line already is not touched."""
    text = reply.result.text
    # Line breaks of JSON stand between its parts only, never inside a string.
    return " ".join(line.strip() for line in text.split("\n")) if "\n" in text else text


def as_json(query: str, reply: AnswerReply | CallError) -> str:
    """Return one line of JSON for one query."""
    return json.dumps({"query": query, **_document(reply)}, ensure_ascii=False)


def as_panel(reply: AnswerReply) -> RenderableType:
    """Return the document, indented, with its entities and what it took below it."""
    from rich.console import Group
    from rich.json import JSON
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    result = reply.result
    parts: list[RenderableType] = [JSON(result.text, ensure_ascii=False)]
    if result.entities:
        table = Table(title=Text("Entities"), title_justify="left")
        for column in ("Where", "Title", "Entity", "Index"):
            table.add_column(column, overflow="fold")
        for found in result.entities:
            ids = shared(tuple(entity.entity_id for entity in found.entities), found.shares)
            table.add_row(*(Text(cell) for cell in (found.pointer or "/", found.title, ids, found.index)))
        parts.append(table)
    parts.append(Padding(Text(_caption(reply), style="dim"), (0, 0, 1, 0)))
    return Group(*parts)


def _caption(reply: AnswerReply) -> str:
    result = reply.result
    parts = [f"log P {result.logprob:.2f}", f"{result.num_tokens} tokens in {result.num_forwards} forwards"]
    if result.num_forced:
        parts.append(f"{result.num_forced} tokens forced")
    if result.num_drafted:
        parts.append(f"{result.num_accepted} of {result.num_drafted} drafted tokens kept")
    if result.mass is not None:
        error = "" if result.mass_stderr is None else f" ± {result.mass_stderr:.2g}"
        parts.append(f"valid without the schema with probability {result.mass:.2g}{error}")
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    parts.append(f"{reply.total_ms:.0f} ms, {reply.queue_ms:.0f} of them waiting")
    if result.compile_ms >= 1:
        parts.append(f"{result.compile_ms:.0f} ms for the schema")
    return "; ".join(parts)


def _document(reply: AnswerReply | CallError) -> dict[str, Any]:
    if isinstance(reply, CallError):
        return {"error": {"code": reply.code, "message": str(reply), "retry_after_s": reply.retry_after_s}}
    result = reply.result
    return {
        "answer": result.value,
        "text": result.text,
        "entities": [_entity(found) for found in result.entities],
        "method": result.method,
        "logprob": result.logprob,
        "tokens": {
            "total": result.num_tokens,
            "forced": result.num_forced,
            "drafted": result.num_drafted,
            "accepted": result.num_accepted,
            "forwards": result.num_forwards,
        },
        "mass": result.mass,
        "mass_stderr": result.mass_stderr,
        "seed": result.seed,
        "schema_digest": result.schema_digest,
        "timings_ms": {
            "queue": reply.queue_ms,
            "compile": result.compile_ms,
            "prefill": result.timings.prefill_ms,
            "decode": result.timings.decode_ms,
            "total": reply.total_ms,
        },
        "index": asdict(reply.index),
    }


def _entity(found: AnswerEntity) -> dict[str, Any]:
    return {
        "pointer": found.pointer,
        "index": found.index,
        "title": found.title,
        "entities": [
            {"entity_id": entity.entity_id, "title": entity.title, "metadata": dict(entity.metadata)}
            for entity in found.entities
        ],
        "shares": list(found.shares),
    }
