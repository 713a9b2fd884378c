"""Explains methods and columns of a report for readers who have read none of the papers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from genret.retrieval.evaluation.methods.evaluated_method import MethodSpec
from genret.retrieval.evaluation.metrics import MICRO_METRICS

_METRICS = {
    "F1(InKB)": "Micro-averaged F1 over the mentions whose right answer is in the index: the harmonic "
    "mean of P(InKB) and R(InKB), counted over all mentions together.",
    "P(InKB)": "Of the mentions that were given an entity, the share that was given the right one.",
    "R(InKB)": "Of the mentions whose right answer is in the index, the share that was given it.",
    "accuracy": "Share of the mentions whose first answer is right; where the index has no right answer, "
    "saying so is right.",
    "Rprec(KILT)": "R-precision as KILT defines it: with R the size of a set of evidence, the share of that "
    "set among the first R answers; the best of a query's sets counts.",
    "AP": "Average precision: the mean of the precisions at the rank of every relevant answer.",
    "Rprec": "R-precision: with R relevant entities, the share of them among the first R answers.",
    "RR": "Reciprocal rank: 1 divided by the rank of the first relevant answer, 0 where none is there.",
}
_AT = {
    "nDCG": "Normalised discounted cumulative gain of the first {k} answers: relevant answers count by their "
    "grade, less the lower they stand; 1 is the best order there is.",
    "RR": "Reciprocal rank: 1 divided by the rank of the first relevant answer, 0 where none is among the "
    "first {k}.",
    "Success": "Share of the queries with a relevant answer among the first {k}.",
    "R": "Recall: share of a query's relevant entities that are among the first {k} answers.",
    "P": "Precision: share of the first {k} answers that are relevant.",
    "AP": "Average precision, looking at the first {k} answers.",
}
_AT_FORM = re.compile(r"(\w+)@(\d+)(\(KILT\))?")

_DISC = (
    "DISC. A title is drawn under the constraint, together with the probability that the constraint kept "
    "on the way, step by step. The draw is accepted with that probability; where none of several draws is "
    "accepted, one of them is taken by its weight. The more draws, the closer the answer is to what the "
    "model would answer if it knew which titles exist. Here with"
)

ABOUT_LISTS = (
    "Methods that write one text (`unconstrained`, `trie`, `greedy`, and `disc:K` without a number of "
    "samples) answer with one title per query; beams, shortlists, vectors, BM25 and `disc:K/SAMPLES` answer "
    "with a list. Metrics that look beyond the first answer favour lists: between the two kinds, compare "
    "Success@1, or F1 of mentions, which looks at the first answer alone. Times of `unconstrained`, `trie` "
    "and `greedy` are those of transformers' `generate`, and all others with a model are those of this "
    "engine, which computes what the prompts have in common once: `disc:1`, which draws from the same "
    "distribution as `trie`, is what the times of more draws are to be compared with."
)

COLUMNS = (
    (
        "± and brackets",
        "`[low, high]` is the {confidence} confidence interval from {num_resamples:,} bootstrap resamples "
        "of the queries, or of the documents where queries come from documents. A method that draws is "
        "given the mean of its seeds for every query, and the interval is that of these means. `±` is the "
        "standard deviation over the seeds. Over several sets, queries are resampled within each set: the "
        "interval speaks of further queries of these sets, not of other sets.",
    ),
    (
        "Δ",
        "The leading metric minus that of `{baseline}` on the same queries, with the interval of a paired "
        "bootstrap. Intervals are not adjusted for the number of methods; p is.",
    ),
    (
        "p",
        "Two-sided p-value of that difference, adjusted for the number of methods compared on the set "
        "(Holm): if no method differed from the baseline, one or more would be below 0.05 in at most about "
        "5 of 100 such sets. Before the adjustment it is at least {least_p}, for it comes from that many "
        "resamples, and at least 2 to the power of 1 − m, where two methods differ in m queries or "
        "documents. Sets are not adjusted for each other.",
    ),
    (
        "invalid",
        "Share of the answers that are no entity of the index. A constrained method cannot write one; the "
        "command fails if it ever does.",
    ),
    ("NO_MATCH", "Share of the queries that the method leaves without an answer."),
    ("errors", "Share of the queries that could not be asked."),
    (
        "ms per query",
        "The median in milliseconds, and p95 and p99: what 95 and 99 of 100 queries stay below. Queries "
        "are answered in batches of {batch_size}, and the time of a batch is shared equally among its "
        "queries; with `--batch-size 1` these are latencies. Loading is left out.",
    ),
    ("queries/s", "Queries of the set divided by the time for all of them."),
)


def describe_methods(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return every method with its description; DISC is explained once."""
    terms = []
    first_disc: str | None = None
    for name in names:
        spec = MethodSpec.parse(name)
        if spec.family != "disc":
            terms.append((f"`{name}`", _describe(spec)))
        elif first_disc is None:
            first_disc = name
            terms.append((f"`{name}`", f"{_DISC} {_disc_settings(spec)}"))
        else:
            terms.append((f"`{name}`", f"As `{first_disc}`: {_disc_settings(spec)}"))
    return tuple(terms)


def answers_once(name: str) -> bool:
    """Whether a method writes one title per query, and no list."""
    spec = MethodSpec.parse(name)
    if spec.family == "unconstrained":
        return (spec.beams or 1) == 1
    return spec.family in ("trie", "greedy") or (spec.family == "disc" and spec.samples == 1)


def looks_at_first(name: str) -> bool:
    """Whether a metric looks at no answer but the first, or at no more than there are right ones."""
    by_first = (*MICRO_METRICS, "accuracy", "Rprec", "Rprec(KILT)")
    return name in by_first or name.removesuffix("(KILT)").endswith("@1")


_METHODS = {
    "unconstrained": "The model writes freely ({how}, by transformers' `generate`). What it wrote "
    "counts if it is exactly a title or an alias of the index; otherwise it is an invalid answer. "
    "Papers call this vanilla decoding.",
    "trie": "One sample, by transformers' `generate`, in which every token must continue some "
    "title of the index (a prefix tree, or trie). All answers exist, but probability is handed on "
    "token by token: a beginning that leads to few or unlikely titles is as likely as it was when "
    "it led anywhere, which biases the answer.",
    "greedy": "As `trie`, but the likeliest of the tokens that continue some title is taken, and none drawn.",
    "beam": "Beam search among the titles of the index, {width} prefixes at a time. It looks for "
    "the most probable titles instead of drawing one, adds up the probabilities of an entity's "
    "title and aliases, and ranks up to k entities.",
    "exact": "Beam search that goes on through what it dropped until the list of the best "
    "entities is proven or its budget is spent.",
    "evidence": "No model: candidates by names, texts, past queries and vectors, as far as the "
    "index has them, in the order of its ranking. Of a mention its own words are asked, without "
    "the text around it.",
    "vectors": "No model: the index's vectors of titles, aliases and descriptions, ranked by the "
    "cosine of the query's vector and an entity's most similar text. Of a mention its own words "
    "are asked, without the text around it. {size} entities are looked up, of which k are listed.",
    "shortlist": "The evidence proposes {size} entities by the query (of a mention, by its own "
    "words), and the model scores every title and alias of all of them, none left out. Entities "
    "are ranked {order}.",
    "auto": "{decoder} among all titles, and a shortlist of {size} entities that the evidence "
    "proposes: the model scores every title and alias of the best that either found. Entities are "
    "ranked {order}.",
    "bm25-shortlist": "BM25 proposes {size} entities by the words of the query (of a mention, by "
    "its own words), and the model ranks these alone by beam search.",
    "bm25": "No model: BM25, word overlap weighted by how rare words are, over titles, aliases "
    "and the column `description` where the index has one. Of a mention its own words are asked, "
    "without the text around it.",
    "run": "Rankings of another system, read from `{file}`.",
}


def _describe(spec: MethodSpec) -> str:
    order = "by the log-probability alone"
    if spec.family == "auto":
        order = "in the order of the ranking of the index"
    if spec.weight is not None:
        order = f"by the log-probability plus {spec.weight:g} times the similarity"
    how = "the likeliest token each time" if spec.beams == 1 else f"beam search with {spec.beams} beams"
    return _METHODS[spec.family].format(
        how=how if spec.beams else "one sample at temperature 1",
        width=spec.beams or "the larger of k and 10",
        size=spec.size,
        decoder="DISC" if spec.decoder == "disc" else "Beam search",
        order=order,
        file=spec.file,
    )


def _disc_settings(spec: MethodSpec) -> str:
    """Return the settings of DISC in sentences; the first follows a colon."""
    if spec.draws == 1:
        text = "one draw per sample, which leaves nothing to choose from: the same distribution as `trie`."
    else:
        text = f"up to {spec.draws} draws per sample."
    if (spec.beams or 1) > 1:
        text += f" Every draw is made of {spec.beams} prefixes at a time, which favours likely titles."
    if spec.adaptive:
        text += " What draws find to be invalid is left out of later ones."
    if spec.top_m is not None:
        text += f" Only the {spec.top_m} likeliest tokens of a step are looked at, which biases the weights."
    if spec.samples == 1:
        return f"{text} One sample: one answer per query."
    return f"{text} Entities are ranked by their share of {spec.samples} samples."


def describe_metric(name: str) -> str:
    """Return the meaning of a metric."""
    if name in _METRICS:
        return _METRICS[name]
    if (match := _AT_FORM.fullmatch(name)) and match[1] in _AT:
        text = _AT[match[1]].format(k=match[2])
        return f"{text} Every set of evidence counts as a whole." if match[3] else text
    return "As ir-measures defines it."
