"""Renders answers to queries: a table for people, tab-separated lines for pipes, JSON Lines for programs.

Explanations become the token tree and a table of the draws of DISC, or the same as JSON.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Column, Table
    from rich.text import Text

    from genret.decoding.trace import TraceDraw
    from genret.retrieval.explanation import Explanation, ExplanationNode
    from genret.retrieval.types import Candidate, RetrievalResult
    from genret.service.client.reply import Reply
    from genret.service.errors import CallError


# Kinds of evidence told in a table, and the least that one must add to a score.
_WHY_KINDS, _LEAST_SHARE = 3, 0.05
WHITESPACE = str.maketrans({"\t": " ", "\n": " ", "\r": " "})


def show(renderable: RenderableType, *, on_stderr: bool = False) -> None:
    """Print a table or the like for people; nothing is cut or wrapped where that is no terminal."""
    from rich.console import Console

    console = Console(stderr=on_stderr)
    if not console.is_terminal:
        console.width = _UNLIMITED
    console.print(renderable)


FOLDED, RIGHT = {"overflow": "fold"}, {"justify": "right"}
_UNLIMITED = 100_000
_LONGEST_WORD = 20  # of a folded column; longer ones are folded where there is no room


def table(
    columns: Iterable[tuple[str, Mapping[str, Any]]],
    rows: Iterable[Sequence[str | Text]],
    spare: Iterable[int] = (),
    **settings: Any,
) -> RenderableType:
    """Return a table of columns with their settings that breaks its lines at words.

    Columns at the positions `spare` are left out, one after the other, where the rest has no room. Neither
    names nor cells are read as markup.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(title_justify="left", caption_justify="left", **settings)
    for name, about in columns:
        made.add_column(Text(name), **about)
    for cells in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return _Fitted(made, [made.columns[at] for at in spare])


@dataclass(frozen=True, slots=True)
class _Fitted:
    table: Table
    spare: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        from rich.text import Text

        columns, needs, left_out = self.table.columns, dict[int, int](), []
        for column in columns:
            sizes = [console.measure(cell) for cell in (column.header, *column.cells)]
            column.max_width = max(size.maximum for size in sizes)
            word = column.max_width if column.no_wrap else max(size.minimum for size in sizes)
            needs[id(column)] = min(word, _LONGEST_WORD) if column.overflow == "fold" else word

        def room() -> int:
            return options.max_width - 1 - sum(needs[id(column)] + 3 for column in columns)

        for column in self.spare:
            if room() < 0 and column in columns:
                columns.remove(column)
                left_out.append(str(column.header))
                self.table.caption = Text(f"no room for {', '.join(left_out)}; --json has all")
        free, growing = room(), sorted(columns, key=lambda one: (one.max_width or 0) - needs[id(one)])
        for number, column in enumerate(growing if free >= 0 else ()):  # else rich makes all narrower
            more = min((column.max_width or 0) - needs[id(column)], free // (len(growing) - number))
            column.width, free = needs[id(column)] + more, free - more
        yield self.table


def below(*parts: RenderableType, caption: str) -> RenderableType:
    """Return parts with a caption below them, which is not wrapped to a table's width as its own would be."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    return Group(*parts, Padding(Text(caption, style="dim"), (0, 0, 1, 0), expand=False))


def shared(entity_ids: Sequence[str], shares: Sequence[float]) -> str:
    """Return ids of entities, with the share of each where there are several and it is known."""
    if len(entity_ids) == 1 or len(shares) != len(entity_ids):
        return ", ".join(entity_ids)
    return ", ".join(f"{one} ({share:.0%})" for one, share in zip(entity_ids, shares, strict=True))


def as_json(query: str, reply: Reply | CallError) -> str:
    """Return one line of JSON for one query."""
    return json.dumps({"query": query, **_document(reply)}, ensure_ascii=False)


def as_lines(query: str, reply: Reply) -> Iterator[str]:
    """Yield a line per candidate.

    Its cells: query, rank, entity id, title, surface, logprob or nothing, probability or nothing, score, and
    shares: "names=8.100000 model=-1.250000".
    """
    for rank, candidate in enumerate(reply.result.candidates, start=1):
        cells = (query, str(rank), candidate.entity_id, candidate.title, candidate.surface)
        likely = candidate.probability
        logprob = "" if math.isnan(candidate.logprob) else f"{candidate.logprob:.6f}"
        probability = "" if likely is None else f"{likely:.6f}"
        shares = " ".join(f"{kind}={share:.6f}" for kind, share in candidate.shares.items())
        figures = (logprob, probability, f"{candidate.score:.6f}", shares)
        yield "\t".join([*(cell.translate(WHITESPACE) for cell in cells), *figures])


def as_table(query: str, reply: Reply, min_mass: float | None = None) -> RenderableType:
    """Return a rich table of one query's candidates, with facts about the answer below it."""
    from rich.text import Text

    result = reply.result
    figures = _figures(result)
    metadata = sorted({name for candidate in result.candidates for name in candidate.metadata})
    columns: list[tuple[str, Mapping[str, Any]]] = [("#", RIGHT), ("Title", FOLDED), ("Entity", FOLDED)]
    columns += [(name, {"no_wrap": True} if name == "Why" else RIGHT) for name in figures]
    columns += [(name, FOLDED) for name in metadata]
    rows = []
    for rank, candidate in enumerate(result.candidates, start=1):
        written = candidate.title
        if candidate.surface != candidate.title:
            written += f"  ({candidate.surface})"
        told = [tell(candidate) for tell in figures.values()]
        cells = ["" if (v := candidate.metadata.get(name)) is None else str(v) for name in metadata]
        rows.append((str(rank), written, candidate.entity_id, *told, *cells))
    own = len(columns) - len(metadata)
    spare = [*(at for at in range(own) if columns[at][0] == "log P"), *reversed(range(own, len(columns)))]
    made = table(columns, rows, spare, title=Text(query, style="bold"))
    return below(made, caption=_caption(reply, min_mass))


def _figures(result: RetrievalResult) -> dict[str, Callable[[Candidate], str]]:
    """Return the columns of figures that say something new, each with its text for a candidate."""
    if result.method == "disc":
        return {"Share": lambda c: f"{c.probability or 0.0:.0%}"}
    columns: dict[str, Callable[[Candidate], str]] = {}
    is_ranked = result.nothing_fits is not None
    if is_ranked:
        columns = {"Probability": lambda c: f"{c.probability or 0.0:.1%}", "Why": _why}
    if not any(math.isnan(c.logprob) for c in result.candidates):
        columns["log P"] = lambda c: f"{c.logprob:.2f}"
    if not is_ranked and any(c.probability is not None for c in result.candidates):
        columns["Among scored"] = lambda c: f"{c.probability or 0.0:.1%}"
    if not is_ranked and any(c.score != c.logprob for c in result.candidates):
        columns["Score"] = lambda c: f"{c.score:.2f}"
    return columns


def _why(candidate: Candidate) -> str:
    """Return the largest additions of kinds of evidence to the score, a line for each."""
    told = [f"{kind} {share:+.1f}" for kind, share in candidate.shares.items() if abs(share) >= _LEAST_SHARE]
    return "\n".join(told[:_WHY_KINDS])


def abstention(reply: Reply, min_mass: float | None) -> str:
    """Return the reason for withholding an answer; nothing where it was not withheld."""
    mass = reply.result.bounded_mass
    if not reply.result.abstained or mass is None:
        return ""
    if min_mass is None:
        return f"in the catalogue with probability {mass:.2g}, too little"
    shown = (f"{mass:.{digits}g}" for digits in (2, 4, 8, 17))  # enough to see that it is less
    told = next(text for text in shown if float(text) < min_mass)
    return f"in the catalogue with probability {told}, below --min-mass {min_mass:g}"


def _caption(reply: Reply, min_mass: float | None) -> str:
    result = reply.result
    parts: list[str] = []
    if result.abstained:
        parts.append(f"no match: {abstention(reply, min_mass)}")
    elif result.no_match:
        parts.append("nothing in the catalogue matched")
    if result.certified is not None:
        proof = "proven exact top-k" if result.certified else "not proven exact"
        if result.num_exact_nodes:
            proof += f" after {result.num_exact_nodes:,} more tokens"
        parts.append(proof)
    if result.num_scored:
        parts.append(f"{result.num_scored:,} titles scored, of {result.shortlist_size:,} entities proposed")
    if result.nothing_fits is not None:
        parts.append(f"none of them is meant with probability {result.nothing_fits:.1%}")
    if result.missing_evidence:
        parts.append(f"without its {', '.join(result.missing_evidence)}, which cannot be used")
    parts += _mass_parts(result)
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    waited = f", {reply.queue_ms:.0f} of them waiting" if round(reply.queue_ms) else ""
    parts.append(f"{reply.total_ms:.0f} ms{waited}")
    parts.append(f"index {reply.index.name}")
    if result.kv.peak_bytes:
        branch = "draw" if result.num_draws else "beam"
        shared = result.kv.shared_prefix_bytes
        beside = f" and {_megabytes(shared)} shared with other requests" if shared else ""
        parts.append(
            f"{_megabytes(result.kv.peak_bytes)} of keys and values{beside} "
            f"({_megabytes(result.kv.per_branch_bytes)} with a cache per {branch})"
        )
    return "; ".join(parts)


def _megabytes(num_bytes: int) -> str:
    """Return bytes in MB with two digits that say something."""
    megabytes = num_bytes / 1e6
    return f"{megabytes:,.0f} MB" if megabytes >= 10 else f"{megabytes:.2g} MB"


def _mass_parts(result: RetrievalResult) -> list[str]:
    """Return phrases about the mass; that of a withheld answer is in the reason already."""
    if result.mass is None:
        return []
    estimate = _mass(result.mass, result.mass_stderr, result.num_draws) + _bounds(result)
    is_inside = result.bounded_mass == result.mass
    is_known = result.mass_lower is not None and result.mass_lower == result.mass_upper
    parts = []
    if not result.abstained:
        told = estimate if is_inside and not is_known else f"{result.bounded_mass:.3g}"
        parts.append(f"in the catalogue with probability {told}")
    if not is_known and (result.abstained or not is_inside):
        parts.append(f"estimated {estimate}")
    return parts


def _mass(mass: float, stderr: float | None, num_draws: int) -> str:
    """Return an estimated probability with its error, at an end of [0, 1] the 95 % bound it stands for."""
    if stderr is None:
        return f"{mass:.3g}"
    if mass in (0.0, 1.0):
        # Nothing seen in n draws means below 3/n, the "rule of three"; the standard error is there that of
        # half a draw, 1/(√2 n), or zero when draws are weighted and not counted.
        bound = 3 * math.sqrt(2) * stderr or 3 / max(num_draws, 1)
        if bound < 1:
            bound = _rounded(bound, 1, ROUND_CEILING)
            return f"below {bound:.3g}" if mass == 0.0 else f"above {1 - bound:.4g}"
    return f"{mass:.3g} ± {stderr:.2g}"


def _bounds(result: RetrievalResult) -> str:
    """Return the bounds of a mass, rounded so that they stay true; nothing where there are none."""
    lower = _rounded(result.mass_lower or 0.0, 3, ROUND_FLOOR)
    upper = _rounded(1.0 if result.mass_upper is None else result.mass_upper, 3, ROUND_CEILING)
    if upper >= 1.0:
        return f", certainly at least {lower:.3g}" if lower > 0.0 else ""
    return f", certainly between {lower:.3g} and {upper:.3g}"


def _rounded(value: float, digits: int, direction: str) -> float:
    """Round to so many significant digits, upwards or downwards."""
    return float(Context(prec=digits, rounding=direction).create_decimal(repr(value)))


_CANDIDATE_FIELDS = ("entity_id", "title", "surface", "logprob", "probability", "score", "similarity")
_RESULT_FIELDS = (
    *("abstained", "num_draws", "num_accepted", "num_nodes", "num_exact_nodes", "num_scored"),
    *("shortlist_size", "nothing_fits"),
)


_STAGES = ("prefill", "decode", "shortlist", "score")


def _candidate(candidate: Candidate) -> dict[str, Any]:
    told = {name: getattr(candidate, name) for name in _CANDIDATE_FIELDS}
    if math.isnan(candidate.logprob):
        told["logprob"] = None
    return {**told, "shares": dict(candidate.shares), "metadata": dict(candidate.metadata)}


def _document(reply: Reply | CallError) -> dict[str, Any]:
    from genret.service.errors import CallError

    if isinstance(reply, CallError):
        return {"error": {"code": reply.code, "message": str(reply)}}
    result = reply.result
    explanation = {} if result.explanation is None else {"explanation": asdict(result.explanation)}
    return {
        "finish_reason": "NO_MATCH" if result.no_match else "OK",
        "method": result.method,
        "candidates": [{"rank": i, **_candidate(c)} for i, c in enumerate(result.candidates, start=1)],
        "certified": result.certified,
        "mass": result.mass,
        "mass_stderr": result.mass_stderr,
        "mass_lower_bound": result.mass_lower,
        "mass_upper_bound": result.mass_upper,
        **{name: getattr(result, name) for name in _RESULT_FIELDS},
        "missing_evidence": list(result.missing_evidence),
        "num_steps": result.num_steps,
        "seed": result.seed,
        "kv": {**asdict(result.kv), "saved_bytes": result.kv.saved_bytes},
        "index": asdict(reply.index),
        "timings_ms": {
            "queue": round(reply.queue_ms, 3),
            **{name: round(getattr(result.timings, f"{name}_ms"), 3) for name in _STAGES},
            "total": round(reply.total_ms, 3),
        },
        **explanation,
    }


# Most places shown below one parent that were left for better ones; most draws shown.
_LEFT_SHOWN = 3
_LEFT = ("pruned", "closed")  # states of places that were not continued
_DRAWS_SHOWN = 64
_STYLES = {"expanded": "", "finished": "green", "pruned": "dim", "closed": "dim"}
_KEY = (
    "Behind every token its probability behind the one above; in brackets how many tokens continue a title "
    "there, their probability together, and what is lost to all others."
)


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
        # Continued and finished places come first, the likelier ones before the others.
        for place in sorted(below[parent], key=lambda at: (nodes[at].state in _LEFT, -nodes[at].logprob)):
            if nodes[place].state in _LEFT:
                left += 1
                if left > _LEFT_SHOWN:
                    continue
            waiting.append((place, branch.add(_label(nodes[place]))))
        if left > _LEFT_SHOWN:
            branch.add(f"[dim]… {left - _LEFT_SHOWN:,} more that were left[/dim]")
    return tree


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
    from rich.text import Text

    columns: list[tuple[str, Mapping[str, Any]]] = [("Sample", RIGHT), ("Draw", RIGHT), ("Written", FOLDED)]
    columns += [("Valid mass", RIGHT), ("Accepted with", RIGHT), ("Outcome", {})]
    rows = []
    shown = explanation.draws[:_DRAWS_SHOWN]
    for draw in shown:
        cells = (
            f"{draw.sample}",
            f"{draw.draw}",
            json.dumps(_written(explanation, draw.node), ensure_ascii=False),
            _percent(draw.valid_mass),
            _percent(draw.acceptance_probability) if _is_judged(draw) else "",
            _outcome(draw),
        )
        rows.append([Text(cell, style="bold" if draw.chosen else "") for cell in cells])
    made = table(columns, rows, title=Text("Draws"))
    if len(shown) == len(explanation.draws):
        return made
    return Group(made, Text(f"… {len(explanation.draws) - len(shown):,} more draws; --json has them all"))


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


def _is_judged(draw: TraceDraw) -> bool:
    """Whether the draw could have been accepted: not in the second phase, nor when it cannot go on."""
    return draw.acceptance_probability > 0.0


def _outcome(draw: TraceDraw) -> str:
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
