"""How explanations look: the token tree and the draws for people, and the same as JSON for programs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode

# Of the places below one parent that were left for better ones, so many are shown; of the draws, so many.
_LEFT_SHOWN = 3
_DRAWS_SHOWN = 64
_STYLES = {"expanded": "", "finished": "green", "pruned": "dim", "closed": "dim"}
_KEY = (
    "Behind every token its probability behind the one above; in brackets how many tokens continue a title "
    "there, their probability together, and what is lost to all others."
)


def as_document(explanation: Explanation) -> dict[str, Any]:
    """Return what JSON says of an explanation."""
    return asdict(explanation)


def as_tree(explanation: Explanation) -> RenderableType:
    """Return the token tree, with a table of the draws below it where there are any."""
    from rich.console import Group
    from rich.text import Text

    if not explanation.nodes:
        return Text("the model was not asked: the filter allows no entity\n", style="dim")
    parts = [_tree(explanation), Text(_KEY, style="dim")]
    if explanation.draws:
        parts.append(_draws(explanation))
    if explanation.truncated:
        parts.append(Text("not all of it: the least likely was left out", style="dim"))
    return Group(*parts, Text())


def _tree(explanation: Explanation) -> RenderableType:
    from rich.tree import Tree

    nodes = explanation.nodes
    below: dict[int, list[int]] = defaultdict(list)
    for place, node in enumerate(nodes):
        if node.parent is not None:
            below[node.parent].append(place)
    tree = Tree(_label(nodes[0]))
    waiting = [(0, tree)]
    while waiting:
        parent, branch = waiting.pop()
        left = 0
        for place in sorted(below[parent], key=lambda place: _order(nodes[place])):
            if nodes[place].state in ("pruned", "closed"):
                left += 1
                if left > _LEFT_SHOWN:
                    continue
            waiting.append((place, branch.add(_label(nodes[place]))))
        if left > _LEFT_SHOWN:
            branch.add(f"[dim]… {left - _LEFT_SHOWN:,} more that were left[/dim]")
    return tree


def _order(node: ExplanationNode) -> tuple[bool, float]:
    """What the model went on from or finished comes first, the likelier ones before the others."""
    return node.state in ("pruned", "closed"), -node.logprob


def _label(node: ExplanationNode) -> Text:
    from rich.text import Text

    if node.parent is None:
        label = Text("end of the prompt")
    else:
        # Quoted, so that blanks are seen and nothing in a title commands the terminal.
        label = Text(json.dumps(node.text, ensure_ascii=False), style="bold")
        label.stylize(_STYLES[node.state])
        label.append(f" {_percent(math.exp(node.logprob))}", style="not bold")
    if node.valid_mass is not None:
        counted = "" if node.num_valid is None else f"{node.num_valid:,} "
        valid = f" ({counted}valid: {_percent(node.valid_mass)}, lost: {_percent(1 - node.valid_mass)})"
        label.append(valid, style="not bold cyan")
    if node.state == "finished":
        rank = "" if node.candidate_rank is None else f"#{node.candidate_rank}, "
        label.append(f"  {rank}finished, {_percent(math.exp(node.total_logprob))} in all", style="not bold")
    elif node.state != "expanded":
        label.append(f"  {node.state}", style="not bold")
    return label


def _draws(explanation: Explanation) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("Draws"), title_justify="left")
    for column in ("Sample", "Draw"):
        table.add_column(column, justify="right")
    table.add_column("Written", overflow="fold")
    for column in ("Valid mass", "Accepted with"):
        table.add_column(column, justify="right")
    table.add_column("Outcome")
    shown = explanation.draws[:_DRAWS_SHOWN]
    for draw in shown:
        cells = (
            str(draw.sample),
            str(draw.draw),
            json.dumps(_written(explanation, draw.node), ensure_ascii=False),
            _percent(draw.valid_mass),
            _percent(draw.acceptance_probability) if _is_judged(draw) else "",
            _outcome(draw),
        )
        table.add_row(*(Text(cell) for cell in cells), style="bold" if draw.chosen else "")
    if len(shown) == len(explanation.draws):
        return table
    return Group(table, Text(f"… {len(explanation.draws) - len(shown):,} more draws; --json has them all"))


def _written(explanation: Explanation, place: int) -> str:
    """Return the text up to a place, without what ends it."""
    node = explanation.nodes[place]
    texts: list[str] = []
    if node.state == "finished" and node.parent is not None:
        node = explanation.nodes[node.parent]
    while node.parent is not None:
        texts.append(node.text)
        node = explanation.nodes[node.parent]
    return "".join(reversed(texts))


def _is_judged(draw: ExplanationDraw) -> bool:
    """Whether the draw could have been accepted: not in the second phase, nor when it cannot go on."""
    return draw.acceptance_probability > 0.0


def _outcome(draw: ExplanationDraw) -> str:
    if draw.accepted:
        return "accepted, the sample" if draw.chosen else "accepted, not needed"
    if draw.chosen:
        return "the sample, as the only one" if _is_judged(draw) else "the sample, by weight"
    if draw.valid_mass == 0.0:
        return "cannot go on"
    return "refused" if _is_judged(draw) else "not chosen"


def _percent(probability: float) -> str:
    """Return a probability with three digits that say something."""
    return f"{100 * max(0.0, probability):.3g}%"
