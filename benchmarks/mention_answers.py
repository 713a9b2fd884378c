"""Ambiguous mentions of labelled documents, linked as `genret link` does by default: right and calibrated?

    python benchmarks/mention_answers.py --work /large/disk --json mention_answers.json
    python benchmarks/mention_answers.py --work /large/disk --part train --fit

The catalogues are the shared data's, with base names as aliases ("Cairo" of "Cairo, Illinois"). A mention
counts if the finder finds exactly its span, several entities are called so, and the entity it is labelled
with is in the catalogue. Beside the answer of `genret link` stands a simple one: the entity whose title is
the mention (spelled so, else in any letter case), else the one that the model gives the largest probability.

Calibration is told twice: of mentions whose entity is among those called so, which is what the probabilities
are about, and of all that count. With `--fit`, the weights of names, text and model are fitted on the
mentions of the part: `genret.json` has those of the train parts, and the figures are those of the dev parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from harness.labelled_mentions import catalogue_of, labelled_sets, opened_index, read_documents
from harness.report import NEW_FOLDER, benchmark, shown
from harness.titles import DATA
from scipy.optimize import minimize

from genret import Retriever
from genret.retrieval.checkpoints import folder_fingerprint
from genret.retrieval.defaults import small_model_dir
from genret.retrieval.index.owners import shares_by_role
from genret.retrieval.linking import Document, LinkOptions, link_documents
from genret.retrieval.linking.finding.finder import open_finder
from genret.retrieval.linking.finding.folding import fold_name
from genret.retrieval.linking.named_entities import NEARBY_CHARS, NamedEntities

_BINS = 10
_RIDGE = 1e-3


@dataclass(frozen=True)
class Asked:
    """An ambiguous mention and its answer.

    `evidence` says per entity whether the mention is its title, is spelled so, and has a word of it nearby.
    """

    mention: str
    gold: str  # title of the entity it is labelled with
    titles: tuple[str, ...]  # of the entities called so, in the order of the answer
    probabilities: tuple[float, ...]  # of each, as the answer has it
    logprobs: tuple[float, ...]  # log P(e | q) of each
    evidence: npt.NDArray[np.float64]

    @property
    def is_right(self) -> bool:
        """Whether the first is the one."""
        return self.titles[0] == self.gold

    @property
    def is_simply_right(self) -> bool:
        """Whether the simple answer is the one: the entity titled so, else the model's."""
        named = [title for title in self.titles if title == self.mention]
        named += [title for title in self.titles if fold_name(title) == fold_name(self.mention)]
        likeliest = min(zip(self.logprobs, self.titles, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return (named[0] if named else likeliest[1]) == self.gold


def ambiguous(retriever: Retriever, file: Path, known: set[str]) -> Iterator[Asked]:
    """Link the mentions of a labelled set that count.

    They are given to the linker as spans, named candidates alone, as it links what it finds itself: nothing
    else of the documents has to be linked.
    """
    options = LinkOptions(k=1000, candidates="named")
    finder = open_finder(retriever.index, options.find, cache_dir=retriever.index.path.parent / "names")
    names = NamedEntities(retriever, finder.entity_ids, options)
    documents = read_documents(file)
    gold = [{(s.start, s.end): s.title for s in document.spans if s.title in known} for document in documents]
    texts = []
    for number, document in enumerate(documents):
        found = [span for span in finder.find(document.text) if span.num_names > 1]
        spans = [span for span in found if (span.start, span.end) in gold[number]]
        texts.append(Document("set", number, str(number), document.text, tuple(spans)))
    for row in link_documents(retriever, texts, options):
        text, start, end = documents[row["row"]].text, row["start"], row["end"]
        left, right = text[max(start - NEARBY_CHARS, 0) : start], text[end : end + NEARBY_CHARS]
        near = names.near(row["mention"], left, right)
        called = names.called(row["mention"], names.ids(row["mention"]))
        listed = row["candidates"]
        yield Asked(
            row["mention"],
            gold[row["row"]][start, end] or "",
            tuple(c["title"] for c in listed),
            tuple(c["probability"] for c in listed),
            tuple(c["logprob"] for c in listed),
            np.array([[*called[c["entity_id"]][1:3], c["entity_id"] in near] for c in listed], dtype=float),
        )


def calibration_error(asked: Sequence[Asked]) -> tuple[float, list[dict[str, Any]]]:
    """Return the expected calibration error of the first probability over ten bins, and the bins."""
    first = np.array([one.probabilities[0] for one in asked])
    right = np.array([one.is_right for one in asked], dtype=float)
    places = np.minimum((first * _BINS).astype(int), _BINS - 1)
    bins = []
    for place in range(_BINS):
        inside = places == place
        if inside.any():
            told, true = float(first[inside].mean()), float(right[inside].mean())
            bins.append(
                {"from": place / _BINS, "mentions": int(inside.sum()), "probability": told, "right": true}
            )
    error = sum(b["mentions"] * abs(b["probability"] - b["right"]) for b in bins) / len(asked)
    return error, bins


def fit(sets: Sequence[Sequence[Asked]]) -> dict[str, float]:
    """Return the weights under which the labelled entities are likeliest.

    A set counts as the root of its size.
    """
    answerable = [[one for one in asked if one.gold in one.titles] for asked in sets]
    terms = [(one, len(asked) ** -0.5) for asked in answerable for one in asked]
    total = sum(weight for _, weight in terms)

    def loss(point: npt.NDArray[np.float64]) -> float:
        mention, title, spelling, context = np.exp(point)
        lost = 0.0
        for one, weight in terms:
            is_title, is_spelled, is_near = one.evidence.T
            strengths = np.where(is_title, title, 1.0) * np.where(is_spelled, spelling, 1.0)
            shares = shares_by_role(np.ones(len(one.titles)), 2 * is_title + is_spelled, strengths)
            scores = np.logaddexp(one.logprobs, np.log(mention * shares)) + is_near * math.log(context)
            lost += weight * (np.logaddexp.reduce(scores) - scores[one.titles.index(one.gold)])
        return float(lost / total + _RIDGE * (point @ point))

    point = minimize(loss, np.log([0.5, 10.0, 5.0, 9.0]), method="Nelder-Mead", options={"maxfev": 300}).x
    return dict(zip(("mention", "title_weight", "spelling", "context"), np.exp(point).tolist(), strict=True))


@benchmark("generative-retrieval", "torch", "transformers", "numpy")
@DATA
@click.option("--model", help="Checkpoint directory.", show_default="the small model")
@click.option("--part", type=click.Choice(["dev", "train"]), default="dev", help="Part of the labelled sets.")
@click.option("--set", "sets", multiple=True, help="A labelled set.", show_default="all of them")
@click.option("--fit", "is_fitted", is_flag=True, help="Fit the weights on this part and print them.")
@click.option("--work", type=NEW_FOLDER, required=True, help="Where catalogues and indexes are kept: 200 MB.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Link the ambiguous mentions of labelled documents."""
    data, work, part = options.data, options.work, options.part
    work.mkdir(parents=True, exist_ok=True)
    model = Path(options.model or small_model_dir())
    found: dict[str, list[Asked]] = {}
    opened: dict[str, Retriever] = {}
    for name in options.sets or labelled_sets(data):
        catalogue = catalogue_of(name)
        if catalogue not in opened:
            opened_index(data, work, catalogue, model, None).close()
            opened[catalogue] = Retriever.open(work / f"{catalogue}.index", str(model), num_threads=1)
        known = set(opened[catalogue].index.entities.column("title").to_pylist())
        found[name] = list(ambiguous(opened[catalogue], data / "el" / f"{name}.{part}.jsonl.gz", known))
        click.echo(f"{name}: {len(found[name])} mentions", err=True)
    figures = _report(found)
    if options.is_fitted:
        figures["fitted"] = shown("fitted", fit(list(found.values())))
    return {"model": folder_fingerprint(model), "part": part, **figures}


def _report(found: dict[str, list[Asked]]) -> dict[str, Any]:
    """Print and return the figures."""
    sets = {
        name: {
            "mentions": len(asked),
            "listed": sum(one.gold in one.titles for one in asked),
            "simple": sum(one.is_simply_right for one in asked),
            "link": sum(one.is_right for one in asked),
        }
        for name, asked in found.items()
    }
    totals = {key: sum(row[key] for row in sets.values()) for key in next(iter(sets.values()))}
    totals["sets where link is better"] = sum(row["link"] > row["simple"] for row in sets.values())
    totals["sets where it can be"] = sum(row["simple"] < row["listed"] for row in sets.values())
    pooled = [one for asked in found.values() for one in asked]
    calibration = {}
    for kind, asked in (
        ("its entity is called so", [one for one in pooled if one.gold in one.titles]),
        ("its entity is in the catalogue", pooled),
    ):
        error, bins = calibration_error(asked)
        calibration[kind] = {"error": error, "bins": bins}
    return shown("mentions", {"sets": sets, "total": totals, "calibration": calibration})


if __name__ == "__main__":
    main()
