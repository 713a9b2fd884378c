"""Quality of the order of `auto` beside every single kind of evidence.

    python benchmarks/ranking.py titles --work /large/disk --json ranking_titles.json
    python benchmarks/ranking.py sample --work /large/disk --json ranking_sample.json
    python benchmarks/ranking.py places --work /large/disk --json ranking_places.json

`titles`: 0.9 million titles without any training. `auto` is that of an index as it is built, fitted to
queries made from the catalogue; beside it the same fitted to the sets' train parts, words and letters alone,
and BM25 by bm25s. Figures are of the dev parts, which nothing was fitted to; queries that are made come from
other titles. `sample`: the sample catalogue with the default model, fitted to the dev queries as the shipped
ranking is, reported on the test queries. `places`: the 300 largest of 487,000 places and people, mistyped and
cut.

Ties count against whoever has them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from harness.divergence import auc
from harness.processes import build_index
from harness.report import COUNT, NEW_FOLDER, benchmark, shown
from harness.sample_data import DATA as DATA_FOLDER
from harness.sample_data import read_tsv
from harness.timing import timed
from harness.titles import DATA, json_lines

from genret import Retriever
from genret.retrieval.evidence.field import NAMES
from genret.retrieval.evidence.postings import IntArray, fold_all
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.fitting import calibration_error, example_of, fit, outcome_of
from genret.retrieval.ranking.made_queries import Labelled
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.ranking.rankings import Provenance, Ranking

_PACKAGES = ("generative-retrieval", "numpy", "numba", "rapidfuzz", "scipy", "bm25s", "torch")
_LISTED = 10
_SEED = 0
_RESAMPLES = 2000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

# A query and the titles that answer it.
Asked = tuple[str, tuple[str, ...]]

# From a query to scores: entity numbers and their scores, at least the best `_LISTED` and all ties.
Search = Callable[[str], tuple[IntArray, npt.NDArray[np.float32]]]
Bools = npt.NDArray[np.bool_]

_work = click.option("--work", type=NEW_FOLDER, required=True, help="For the indexes.")


def mistyped(text: str, random: Random) -> str:
    """Return a text with one letter replaced, dropped, doubled or swapped with the next one."""
    at, kind = random.randrange(len(text)), random.randrange(4)
    if kind == 0:
        return text[:at] + random.choice(_LETTERS) + text[at + 1 :]
    if kind == 1 and len(text) > 2:
        return text[:at] + text[at + 1 :]
    if kind == 2 or at + 1 == len(text):
        return text[: at + 1] + text[at:]
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def beginning(text: str, random: Random) -> str:
    """Return the first 60 % of a text."""
    return text[: max(3, round(len(text) * 0.6))]


def without_a_word(text: str, random: Random) -> str:
    """Return a text of several words without one of them."""
    words = text.split()
    del words[random.randrange(len(words))]
    return " ".join(words)


def shuffled(text: str, random: Random) -> str:
    """Return the words of a text in another order."""
    words = text.split()
    random.shuffle(words)
    return " ".join(words)


_MADE: Mapping[str, tuple[bool, Callable[[str, Random], str]]] = {
    "small letters": (False, lambda text, random: text.lower()),
    "one typing error": (False, mistyped),
    "two typing errors": (False, lambda text, random: mistyped(mistyped(text, random), random)),
    "no blanks": (True, lambda text, random: text.replace(" ", "").lower()),
    "first 60 %": (False, beginning),
    "a word left out": (True, without_a_word),
    "another word order": (True, shuffled),
}
_PUBLIC = {
    "questions about (LC-QuAD)": "lcquad1",
    "claims (FEVER)": "fever",
    "claims (FEVER, paper)": "fever_dev_extra",
    "claims (HoVer)": "hover",
    "claims (CREAK)": "creak",
    "keywords (DBpedia-Entity)": "dbpedia_entity_v2",
}
_MENTIONS = ("conel22", "gerdaq", "geovirus", "msnbc")


def query_sets(shared: Path, titles: list[str], part: str, count: int, seed: int) -> dict[str, list[Asked]]:
    """Return at most `count` queries of every kind, of the part "train" or "dev" where a set has parts.

    Queries that are made come from other titles with another seed.
    """
    random, known = Random(seed), set(titles)
    sets: dict[str, list[Asked]] = {}
    for name, (needs_words, make) in _MADE.items():
        chosen: list[Asked] = []
        while len(chosen) < count:
            title = random.choice(titles)
            if not needs_words or " " in title:
                chosen.append((make(title, random), (title,)))
        sets[name] = chosen
    for name, data_set in _PUBLIC.items():
        sets[name] = _first(_gold(shared, data_set, part, known), count, seed)
    sets["French spellings"] = _first(_gold(shared, "dbp15k", part, known, lang="fr"), count, seed)
    mentions = [list(_mentions(shared, name, part, known)) for name in _MENTIONS]
    for name, place in (("mentions", 0), ("mentions in context", 1)):
        sets[name] = _first([(both[place], gold) for some in mentions for both, gold in some], count, seed)
    return {name: asked for name, asked in sets.items() if asked}


def _first(asked: Iterable[Asked], count: int, seed: int) -> list[Asked]:
    every = list(asked)
    Random(seed).shuffle(every)
    return every[:count]


def _gold(shared: Path, name: str, part: str, known: set[str], lang: str | None = None) -> Iterator[Asked]:
    for row in json_lines(shared / "queries" / f"{name}.{part}.jsonl.gz"):
        titles = tuple(gold["title"] for gold in row["gold"] if gold["grade"] > 0 and gold["title"] in known)
        if titles and lang in (None, row.get("lang")):
            yield row["query"], titles


def _mentions(
    shared: Path, name: str, part: str, known: set[str]
) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    for row in json_lines(shared / "el" / f"{name}.{part}.jsonl.gz"):
        title = row.get("title_wp") or row.get("title")
        if title in known:
            around = f"{row['left'][-60:]} {row['mention']} {row['right'][:60]}"
            yield (row["mention"], around.strip()), (title,)


@benchmark(*_PACKAGES)
@DATA
@_work
@click.option("--count", type=click.IntRange(min=20), default=250, help="Queries per set.")
def titles(options: SimpleNamespace) -> dict[str, Any]:
    """0.9 million titles, nothing trained."""
    data, count = options.data, options.count
    source = data / "titles" / "wikipedia_en.parquet"
    index = _built(options.work / "titles.index", source)
    names = pq.read_table(source).column("title").to_pylist()
    ranker = Ranker.open(index)
    number_of = {index.entity(number).title: number for number in range(index.num_entities)}
    tuned = _tuned_on(ranker, query_sets(data, names, "train", count, _SEED + 1), number_of)
    ways: dict[str, Search] = {
        "auto": lambda query: _ranked(ranker, ranker.alone, query),
        "auto, tuned": lambda query: _ranked(ranker, tuned, query),
        "words": lambda query: _found(ranker, query, 0),
        "letters": lambda query: _found(ranker, query, 1),
        **_bm25s([index.entity(number).title for number in range(index.num_entities)]),
    }
    figures: dict[str, Any] = {"counts": {}, "sets": {}}
    averages: dict[str, list[float]] = {way: [] for way in ways}
    for name, asked in query_sets(data, names, "dev", count, _SEED + 2).items():
        firsts, row = {}, {}
        for way, search in ways.items():
            first, ten, cost = _hits(search, asked, number_of)
            firsts[way] = first
            row[way] = {"hits@1": first.mean(), "hits@10": ten.mean(), "cpu_ms": cost}
            averages[way].append(float(first.mean()))
        single = max((way for way in ways if not way.startswith("auto")), key=lambda way: firsts[way].mean())
        row["best single"] = {"way": single, "difference": _interval(firsts["auto"], firsts[single])}
        figures["counts"][name] = len(asked)
        figures["sets"][name] = row
        shown(f"{name} ({len(asked)})", row)
    average = {way: float(np.mean(values)) for way, values in averages.items()}
    figures["average hits@1"] = shown("average hits@1", average)
    return figures


@benchmark(*_PACKAGES)
@_work
@click.option("--encoder", type=click.Path(path_type=Path), help="Makes vectors.", default=None)
def sample(options: SimpleNamespace) -> dict[str, Any]:
    """The sample catalogue with the default model."""
    queries = DATA_FOLDER / "queries.tsv"
    figures: dict[str, Any] = {}
    for kind, arguments in (("with past queries", ["--queries", f"{queries}#train"]), ("without", [])):
        if options.encoder is not None:
            arguments = [*arguments, "--vectors", f"encoder:{options.encoder}"]
        path = options.work / f"sample {kind}.index".replace(" ", "-")
        _built(path, DATA_FOLDER / "catalogue.tsv", *arguments).close()
        with Retriever.open(path, num_threads=1) as retriever:
            sets = _sample_sets(retriever.index, queries)
            asked = {name: _examples(retriever, some) for name, some in sets.items()}
            fitted = fit([*asked["dev"], *asked["made of names"]], Provenance("dev queries", 0, ()))
            figures[kind] = {}
            for name in ("test", "plain questions", "mistyped titles", "titles", "aliases"):
                model = [np.argsort(-example.logprobs, kind="stable") for example in asked[name]]
                first = [bool(e.right[order[0]]) for e, order in zip(asked[name], model, strict=True)]
                ten = [bool(e.right[order[:10]].any()) for e, order in zip(asked[name], model, strict=True)]
                outcomes = [outcome_of(fitted, example) for example in asked[name]]
                places = np.array([outcome.place for outcome in outcomes])
                sure = np.array([outcome.sure for outcome in outcomes])
                known = [outcome for outcome in outcomes if not np.isnan(outcome.without)]
                # How often P(nothing fits) is larger with the right entity away.
                away = np.array([outcome.without for outcome in known])
                there = np.array([outcome.nothing for outcome in known])
                figures[kind][name] = {
                    "queries": len(asked[name]),
                    "auto": (float(np.mean(places < 1)), float(np.mean(places < 10))),
                    "model alone": (float(np.mean(first)), float(np.mean(ten))),
                    "calibration error": calibration_error(sure, places < 1),
                    "nothing AUC": auc(away, there),
                }
                shown(f"{kind}, {name}", figures[kind][name])
            figures[kind]["shares of weights"] = fitted.to_json()["weights"]
    return figures


@benchmark(*_PACKAGES)
@DATA
@_work
@click.option("--count", type=COUNT, default=300, help="Largest places.")
def places(options: SimpleNamespace) -> dict[str, Any]:
    """487,000 places and people with population: the largest places, mistyped and cut."""
    work, folder = options.work, options.data / "titles"
    work.mkdir(parents=True, exist_ok=True)
    source = work / "places.parquet"
    table = pq.read_table(folder / "places.parquet")
    people = pq.read_table(folder / "people.parquet").column("title").to_pylist()
    title, name = table.column("title").to_pylist(), table.column("name").to_pylist()
    population = [value or 0 for value in table.column("population").to_pylist()]
    if not source.exists():
        rows = {
            "title": [*title, *people],
            "aliases": [*([n] for n in name), *([] for _ in people)],
            "population": [*(max(p, 1) for p in population), *(1 for _ in people)],
        }
        pq.write_table(pa.table(rows, schema=_PLACES), source)
    index = _built(work / "places.index", source, "--weight-column", "population")
    ranker = Ranker.open(index)
    number_of = {index.entity(number).title: number for number in range(index.num_entities)}
    random = Random(_SEED)
    largest = sorted(range(len(title)), key=lambda i: -population[i])[: options.count]
    # Four of the largest are called Suzhou, and nothing in half of the name says which: any of them is right.
    called: dict[str, list[str]] = {}
    folded = fold_all(name)
    for i, plain in enumerate(folded):
        called.setdefault(plain, []).append(title[i])
    figures: dict[str, Any] = {}
    for kind, make in (("one typing error", mistyped), ("first 60 %", beginning)):
        queries = [make(name[i], random) for i in largest]
        figures[kind] = {}
        for right, gold in (
            ("any of the name", [tuple(called[folded[i]]) for i in largest]),
            ("this place alone", [(title[i],) for i in largest]),
        ):
            asked: list[Asked] = list(zip(queries, gold, strict=True))
            first, ten, cost = _hits(lambda query: _ranked(ranker, ranker.alone, query), asked, number_of)
            found = {"hits@1": first.mean(), "hits@10": ten.mean(), "cpu_ms": cost}
            figures[kind][right] = shown(f"{kind}, {right}", found)
    return figures


_PLACES = pa.schema([("title", pa.string()), ("aliases", pa.list_(pa.string())), ("population", pa.int64())])


def _built(path: Path, source: Path, *arguments: str) -> Index:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        build_index(source, path, *arguments)
    return Index.open(path, verify_digests=False)


def _ranked(ranker: Ranker, ranking: Ranking, query: str) -> tuple[IntArray, npt.NDArray[np.float32]]:
    (asked,) = ranker.evidence.ask([query])
    entities = ranker.evidence.propose(asked, 50)
    scores = ranking.rank(ranker.evidence.features(asked, entities)).scores
    return entities, scores.astype(np.float32)


def _found(ranker: Ranker, query: str, way: int) -> tuple[IntArray, npt.NDArray[np.float32]]:
    (asked,) = ranker.evidence.ask([query])
    field = ranker.evidence.fields[NAMES]
    postings = (field.words, field.letters)[way]
    texts, scores = postings.search(asked.lookups[NAMES][way], 50, field.owner)
    return texts if field.owner is None else field.owner[texts].astype(np.int64), scores


def _bm25s(names: Sequence[str]) -> dict[str, Search]:
    """Return BM25 by bm25s over the words and over the letter trigrams of names."""
    import bm25s

    def trigrams(text: str) -> list[str]:
        words = [f"<{word}>" for word in text.split()]
        return [word[i : i + 3] for word in words for i in range(len(word) - 2)]

    ways: dict[str, Search] = {}
    folded = fold_all(names)
    for way, split in (("bm25s words", str.split), ("bm25s letters", trigrams)):
        model = bm25s.BM25()
        model.index([split(name) or ["-"] for name in folded], show_progress=False)

        def search(
            query: str, model: Any = model, split: Any = split
        ) -> tuple[IntArray, npt.NDArray[np.float32]]:
            known = [token for token in split(fold_all([query])[0]) if token in model.vocab_dict]
            if not known:
                return np.empty(0, np.int64), np.empty(0, np.float32)
            scores = model.get_scores(known)
            least = max(np.partition(scores, -50)[-50], 1e-9)
            best = np.flatnonzero(scores >= least)
            return best, scores[best]

        ways[way] = search
    return ways


def _hits(search: Search, asked: Sequence[Asked], number_of: dict[str, int]) -> tuple[Bools, Bools, float]:
    """Return per query whether a right entity is first and among ten, and the median processor time in ms."""
    first, ten, times = [], [], []
    for query, gold in asked:
        _, cpu_s, (entities, scores) = timed(search, query)
        times.append(1e3 * cpu_s)
        right = np.isin(entities, [number_of[title] for title in gold])
        place = np.inf
        if right.any():
            # An entity counts once, however many of its names were found.
            best = scores[right].max()
            place = len(set(entities[~right & (scores >= best)].tolist()))
        first.append(place < 1)
        ten.append(place < _LISTED)
    return np.array(first), np.array(ten), statistics.median(times)


def _interval(ours: Bools, theirs: Bools) -> tuple[float, float, float]:
    """Return the difference of two shares with its 95 % interval, the queries resampled together."""
    rng = np.random.default_rng(_SEED)
    differences = ours.astype(float) - theirs
    chosen = rng.integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.percentile(differences[chosen].mean(axis=1), [2.5, 97.5])
    return round(float(differences.mean()), 4), round(float(low), 4), round(float(high), 4)


def _tuned_on(ranker: Ranker, sets: dict[str, list[Asked]], number_of: dict[str, int]) -> Ranking:
    examples = [
        example_of(Labelled(query, tuple(number_of[t] for t in gold), 1 / len(asked)), ranker.evidence)
        for asked in sets.values()
        for query, gold in asked
    ]
    return fit(examples, Provenance("train parts", len(examples), ranker.evidence.kinds))


def _sample_sets(index: Index, queries: Path) -> dict[str, list[Labelled]]:
    entities = [index.entity(number) for number in range(index.num_entities)]
    number = {entity.entity_id: i for i, entity in enumerate(entities)}
    rows = read_tsv(queries)
    sets = {
        split: [Labelled(row["query"], (number[row["entity_id"]],)) for row in rows if row["split"] == split]
        for split in ("dev", "test")
    }
    plain = read_tsv(queries.with_name("plain-questions.tsv"))
    sets["plain questions"] = [Labelled(row["query"], (number[row["entity_id"]],)) for row in plain]
    random = Random(_SEED)
    drawn = random.sample(range(len(entities)), 800)
    sets["made of names"] = [Labelled(mistyped(entities[i].title, random), (i,)) for i in drawn[:100]]
    sets["made of names"] += [Labelled(entities[i].title, (i,)) for i in drawn[100:150]]
    sets["mistyped titles"] = [Labelled(mistyped(entities[i].title, random), (i,)) for i in drawn[200:500]]
    sets["titles"] = [Labelled(entities[i].title, (i,)) for i in drawn[500:800]]
    aliases = [(alias, i) for i, entity in enumerate(entities) for alias in entity.aliases]
    sets["aliases"] = [Labelled(alias, (i,)) for alias, i in random.sample(aliases, 300)]
    return sets


def _examples(retriever: Retriever, queries: Sequence[Labelled]) -> list[Any]:
    """Return the candidates of queries as `auto` finds them, all of them scored by the model."""
    number = {retriever.index.entity(i).entity_id: i for i in range(retriever.index.num_entities)}
    found = retriever.retrieve([query.text for query in queries], method="auto", k=40, beam_size=10)
    examples = []
    for query, answer in zip(queries, found, strict=True):
        entities = np.array([number[candidate.entity_id] for candidate in answer.candidates], np.int64)
        logprobs = np.array([candidate.logprob for candidate in answer.candidates])
        pair = (entities, logprobs)
        examples.append(example_of(query, retriever.ranker.evidence, pair))
    return examples


main = click.Group(commands=[titles, sample, places], help="Measure the ranking of `auto`.")

if __name__ == "__main__":
    main()
