"""Write the files of the reproduction: a catalogue, training data of a model, three sets to evaluate on.

Reads the data that `GENRET_SHARED_DATA` names and writes, into one folder:

- `catalogue.parquet`: entity_id and title of every English Wikipedia title;
- `train-queries.tsv`, `train-mentions.jsonl`: the input of `genret train`;
- `mentions.dev.jsonl`, `dbpedia.dev.jsonl`, `questions.dev.jsonl`: the input of `genret evaluate`;
- `mentions.shuffled.jsonl`, `questions.shuffled.jsonl`: the same lines in random order, for `--limit`;
- `taught.parquet`: the titles that training data name and 50,000 others, a catalogue for short training;
- `mentions.tune.jsonl`, `queries.tune.jsonl`: data for choosing settings such as the weight of vectors.

Only gold titles of the catalogue are kept; a query without one is left out. No training text is, letter case
apart, also a dev text. The data for choosing settings are dev texts too, which nothing is trained on, but
none that is evaluated on: of mentions those behind the first of each set, in other documents; of queries
other sets. A model is surer of its training data: settings chosen there would trust it too much.

    python benchmarks/reproduction_data.py --out runs/reproduction
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from harness.report import NEW_FOLDER
from harness.titles import DATA, json_lines

Reader = Callable[[Path, Iterable[str], str, set[str]], Iterator[dict[str, Any]]]
QUERY_SETS = (
    "creak", "fever", "fever_dev_extra", "hover", "lcquad1", "dbpedia_entity_v2", "triviaqa", "webquestions",
    "nq_open",
)  # fmt: skip
MENTION_SETS = (
    "creak_el", "lcquad_el", "gerdaq", "conel22", "iitb", "geovirus", "msnbc", "mintaka_el", "news_fair_v2",
    "oke2016_eval", "oke2016_train", "reuters128", "rss500", "spotlight", "derczynski",
)  # fmt: skip
# iitb marks every content word and is noisy; the dev set of mentions is made of the others.
DEV_MENTION_SETS = tuple(name for name in MENTION_SETS if name != "iitb")
QUESTION_SETS = ("lcquad1", "webquestions")
# The first of each set: large sets, whose mentions are mostly the title itself, would outweigh all others.
DEV_MENTIONS_PER_SET = 150
TUNE_QUERY_SETS = ("creak", "fever", "fever_dev_extra", "hover", "triviaqa", "nq_open")
TUNE_PER_SET = 100
_SEED, _OTHERS = 17, 50_000  # of the shuffled sets and of `taught.parquet`


@click.command()
@DATA
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder of the files.")
def main(out: Path, data: Path) -> None:
    """Write the files of the reproduction."""
    out.mkdir(parents=True, exist_ok=True)

    titles = pq.read_table(data / "titles" / "wikipedia_en.parquet").column("title").to_pylist()
    ids = [f"w{number}" for number in range(len(titles))]
    pq.write_table(pa.table({"entity_id": ids, "title": titles}), out / "catalogue.parquet")
    known = set(titles)

    def of_each(sets: Iterable[str], number: int, read: Reader, fits: Any = None) -> list[dict[str, Any]]:
        """Return the first dev rows of every set, of those that fit."""
        return [
            row for name in sets for row in islice(filter(fits, read(data, [name], "dev", known)), number)
        ]

    dev_mentions = of_each(DEV_MENTION_SETS, DEV_MENTIONS_PER_SET, _mentions)
    dbpedia = list(_queries(data, ("dbpedia_entity_v2",), "dev", known))
    questions = list(_queries(data, QUESTION_SETS, "dev", known))
    held_out = {q["query"].casefold() for q in _queries(data, QUERY_SETS, "dev", known)}
    held_texts = {_text(mention) for mention in _mentions(data, MENTION_SETS, "dev", known)}

    pairs = [
        (query["query"], gold["title"])
        for query in _queries(data, QUERY_SETS, "train", known)
        for gold in query["gold"]
        if query["query"].casefold() not in held_out and gold["grade"] >= min(2, query["best"])
    ]
    with (out / "train-queries.tsv").open("w", newline="", encoding="utf-8") as file:
        plain = {"quoting": csv.QUOTE_NONE, "quotechar": None, "lineterminator": "\n"}
        writer = csv.writer(file, delimiter="\t", **plain)
        writer.writerow(["query", "title"])
        writer.writerows(pairs)
    mentions = [m for m in _mentions(data, MENTION_SETS, "train", known) if _text(m) not in held_texts]
    used = {_sentence(mention) for mention in mentions}
    used |= {query["query"].casefold() for query in (*dbpedia, *questions)}
    documents = {mention["doc"] for mention in dev_mentions}
    tune_mentions = of_each(DEV_MENTION_SETS, TUNE_PER_SET, _mentions, lambda m: m["doc"] not in documents)
    tune_queries = of_each(
        TUNE_QUERY_SETS, TUNE_PER_SET, _queries, lambda q: q["query"].casefold() not in used
    )
    files = {
        "train-mentions": mentions,
        "mentions.dev": dev_mentions,
        "dbpedia.dev": dbpedia,
        "questions.dev": questions,
        "mentions.tune": tune_mentions,
        "queries.tune": tune_queries,
    }
    print(f"catalogue.parquet: {len(titles):,} titles\ntrain-queries.tsv: {len(pairs):,} pairs")
    named = {title for _, title in pairs} | {mention["title"] for mention in mentions}
    others = [number for number, title in enumerate(titles) if title not in named]
    rows = sorted(
        [number for number, title in enumerate(titles) if title in named]
        + random.Random(_SEED).sample(others, min(_OTHERS, len(others)))
    )
    taught = {"entity_id": [ids[row] for row in rows], "title": [titles[row] for row in rows]}
    pq.write_table(pa.table(taught), out / "taught.parquet")
    print(f"taught.parquet: {len(rows):,} titles")
    for name, rows in files.items():
        _write(out / f"{name}.jsonl", rows)
        print(f"{name}.jsonl: {len(rows):,} lines")
    for name in ("mentions", "questions"):
        with (out / f"{name}.dev.jsonl").open(encoding="utf-8") as file:
            lines = list(file)
        random.Random(_SEED).shuffle(lines)
        (out / f"{name}.shuffled.jsonl").write_text("".join(lines), encoding="utf-8")


def _queries(data: Path, sets: Iterable[str], split: str, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yield id, query, gold and the best grade of every query with a gold title in the catalogue."""
    for name in sets:
        for line in json_lines(data / "queries" / f"{name}.{split}.jsonl.gz"):
            found = [g for g in line["gold"] if g["title"] in known and g["grade"] > 0]
            gold = [{"title": g["title"], "grade": g["grade"]} for g in found]
            if gold:
                query = " ".join(line["query"].split())
                best = max(g["grade"] for g in gold)
                yield {"id": f"{name}/{line['id']}", "query": query, "gold": gold, "best": best}


def _mentions(data: Path, sets: Iterable[str], split: str, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the linked mentions whose entity is in the catalogue."""
    for name in sets:
        for line in json_lines(data / "el" / f"{name}.{split}.jsonl.gz"):
            title = line["title"] if line.get("title_kind") == "wikipedia" else line.get("title_wp")
            if title in known:
                parts = {part: line[part] for part in ("left", "mention", "right")}
                yield {"id": line["id"], "doc": line["doc"], **parts, "title": title}


def _text(mention: dict[str, Any]) -> str:
    return f"{mention['left'][-80:]}[{mention['mention']}]{mention['right'][:80]}".casefold()


def _sentence(mention: dict[str, Any]) -> str:
    """Return the whole text around a mention: some sets mark mentions in the queries of others."""
    return " ".join(f"{mention['left']}{mention['mention']}{mention['right']}".split()).casefold()


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        for row in rows:
            row.pop("best", None)
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
