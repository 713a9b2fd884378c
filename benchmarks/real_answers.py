"""JSON answers of the default model under real schemas: valid, ended by their budget, tokens a CPU second.

    python benchmarks/real_answers.py --shared-data DIRECTORY --json real_answers.json
    python benchmarks/real_answers.py --shared-data DIRECTORY --schemas 100 --queries 10 --peer-queries 1

Every schema of a random part of the real ones (of at most so many characters, which both engines compile) is
asked the same test queries of the sample, greedily and one at a time: by genret, and by `generate` of
transformers with xgrammar on the same weights, prompt and budget. The two take turns, schema by schema;
genret alone answers what is beyond `--peer-queries`, eight queries at a time.
Then entities: a field that should name the entity of a riddle of the sample or of a plain question, with the
schema shown and without, paired.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import torch
import xgrammar
from harness.report import COUNT, FOLDER, benchmark, shown
from harness.sample_data import DATA, read_tsv, sample_retriever
from harness.timing import timed
from harness.titles import json_lines
from transformers import AutoConfig, PreTrainedTokenizerFast
from xgrammar.contrib.hf import LogitsProcessor

from genret import Retriever
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.errors import GenretError

_FILE = "schemas/real_world.dev.jsonl.gz"
_NAMED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "name of the person, place or thing that is asked for"},
        "kind": {"type": "string", "description": "what kind of thing it is, in one word"},
    },
    "required": ["name", "kind"],
}


@benchmark("torch", "transformers", "xgrammar", "jsonschema")
@click.option("--shared-data", type=FOLDER, envvar="GENRET_SHARED_DATA", required=True, help="With schemas/.")
@click.option("--schemas", "num_schemas", type=COUNT, default=100)
@click.option("--queries", "num_queries", type=COUNT, default=10, help="Of each schema.")
@click.option("--peer-queries", type=click.IntRange(min=1), help="Of each schema, for both.  [default: all]")
@click.option("--entities", "num_entities", type=COUNT, default=200, help="Queries asked for an entity.")
@click.option("--max-tokens", type=COUNT, default=128)
@click.option("--longest", type=COUNT, default=1500, help="Characters of a schema, at most.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure answers under real schemas."""
    torch.set_num_threads(1)
    rows = [row for row in read_tsv(DATA / "queries.tsv") if row["split"] == "test"]
    random.Random(17).shuffle(rows)
    asked = {"riddles": rows[: options.num_entities], "questions": read_tsv(DATA / "plain-questions.tsv")}
    with sample_retriever(None) as retriever:
        figures = {"real schemas": shown("real schemas", _contest(retriever, rows, options))}
        named = {name: _entities(retriever, some) for name, some in asked.items()}
        return {**figures, "entities": shown("entities", named)}


def _contest(
    retriever: Retriever, rows: Sequence[dict[str, str]], options: SimpleNamespace
) -> dict[str, dict[str, float]]:
    """Answer under real schemas by both engines in turn."""
    texts = [json.dumps(row["schema"]) for row in json_lines(options.shared_data / _FILE)]
    random.Random(17).shuffle(texts)
    engines = {"genret": _genret, "generate with xgrammar": _generate(retriever)}
    alone = "genret alone, eight at a time"
    kinds = ("answers", "valid", "full", "tokens", "cpu_s")
    counts = {name: dict.fromkeys(kinds, 0.0) for name in (*engines, alone)}
    num_paired = min(options.num_queries, options.peer_queries or options.num_queries)
    taken = 0
    for text in texts:
        if len(text) > options.longest or taken == options.num_schemas:
            continue
        queries = [row["query"] for row in rows[taken : taken + options.num_queries]]
        found = {}
        for name, engine in engines.items():
            try:
                found[name] = timed(engine, retriever, text, queries[:num_paired], options.max_tokens)
            except (GenretError, RuntimeError):  # refused by one: asked of neither
                break
        if len(found) < len(engines):
            continue
        taken += 1
        if queries[num_paired:]:
            found[alone] = timed(_genret, retriever, text, queries[num_paired:], options.max_tokens, 8)
        for name, (_, cpu_s, answers) in found.items():
            own = counts[name]
            own["cpu_s"] += cpu_s
            for document, num_tokens in answers:
                own["answers"] += 1
                own["tokens"] += num_tokens
                own["full"] += num_tokens >= options.max_tokens - 1
                own["valid"] += _is_valid(document, text)
        print(f"{taken} schemas", file=sys.stderr)
    return {
        name: {**own, "tokens_per_cpu_s": own["tokens"] / own["cpu_s"]}
        for name, own in counts.items()
        if own["answers"]
    }


_Answers = list[tuple[str, int]]  # documents with their numbers of tokens


def _genret(
    retriever: Retriever, schema: str, queries: Sequence[str], max_tokens: int, batch_size: int = 1
) -> _Answers:
    answers = retriever.answerer.answer_all(queries, schema, batch_size=batch_size, max_tokens=max_tokens)
    return [(answer.text, answer.num_tokens) for answer in answers]


def _generate(retriever: Retriever) -> Callable[[Retriever, str, Sequence[str], int], _Answers]:
    """Return what answers by `generate`, over the weights and prompts of the retriever's answers."""
    answerer = retriever.answerer
    model = answerer._model.pretrained  # type: ignore[attr-defined]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model.config._name_or_path))
    size = AutoConfig.from_pretrained(str(model.config._name_or_path)).vocab_size
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size))

    def answers(retriever: Retriever, schema: str, queries: Sequence[str], max_tokens: int) -> _Answers:
        compiled = compiler.compile_json_schema(schema, any_whitespace=False, strict_mode=False)
        found = []
        for query in queries:
            prompt = torch.tensor([answerer.job(AnswerRequest(query, schema)).prompt])
            written = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                do_sample=False,
                logits_processor=[LogitsProcessor(compiled)],
                pad_token_id=tokenizer.eos_token_id,
            )[0, prompt.shape[1] :]
            found.append((tokenizer.decode(written, skip_special_tokens=True), len(written)))
        return found

    return answers


def _is_valid(document: str, schema: str) -> bool:
    try:
        jsonschema.validate(json.loads(document), json.loads(schema))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _entities(retriever: Retriever, rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Count names of the right entity with the schema shown and without, over the same queries."""
    catalogue = {row["entity_id"]: row for row in read_tsv(DATA / "catalogue.tsv")}
    right: dict[str, list[bool]] = {}
    for way, prompt in (("shown", None), ("not shown", "json-brief")):
        answers = retriever.answerer.answer_all(
            [row["query"] for row in rows], _NAMED, batch_size=8, max_tokens=48, prompt=prompt
        )
        right[way] = [
            _plain(answer.value["name"]) in _names(catalogue[row["entity_id"]])
            for row, answer in zip(rows, answers, strict=True)
        ]
    pairs = list(zip(right["shown"], right["not shown"], strict=True))
    return {
        "queries": len(rows),
        **{way: sum(found) for way, found in right.items()},
        "shown_alone": sum(one and not other for one, other in pairs),
        "not_shown_alone": sum(other and not one for one, other in pairs),
    }


def _names(row: dict[str, str]) -> set[str]:
    return {_plain(name) for name in (row["title"], *row["aliases"].split("|")) if name}


def _plain(name: str) -> str:
    return name.partition(" (")[0].casefold().removeprefix("the ").strip()


if __name__ == "__main__":
    main()
