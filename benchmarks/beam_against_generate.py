"""Trie beam search against transformers' `generate` with a dictionary trie, on the same work.

    python benchmarks/beam_against_generate.py [--titles 100000] [--repeats 5] [--json FILE]

Both sides search the same random Llama with the same beams over the same synthetic titles, one after the
other in turn, one torch thread. Printed are the medians and the ratio pair by pair (median, min, max), and
whether the two lists agree. Titles have equal length, for which the two searches have the same semantics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.beam_search import BeamResult, beam_search
from decoding.hf_model import HFLanguageModel
from decoding.params import BeamParams
from decoding.title_trie import TitleTrie

VOCAB, END, PAD, LENGTH = 8_000, 1, 0, 8
SETTINGS = ((1, 64, 5), (8, 64, 10), (1, 512, 10), (8, 256, 10))  # queries, prompt tokens, beams


def titles(count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Rows with skewed tokens, so that prefixes are shared as in real titles."""
    ranks = rng.zipf(1.2, size=(2 * count, LENGTH)) % (VOCAB - 2) + 2
    rows = sorted({tuple(int(token) for token in row) for row in ranks})
    return [(*rows[i], END) for i in sorted(rng.permutation(len(rows))[:count])]


def dictionary_trie(rows: list[tuple[int, ...]]) -> dict[int, Any]:
    """The usual trie of nested dictionaries."""
    root: dict[int, Any] = {}
    for row in rows:
        node = root
        for token in row:
            node = node.setdefault(token, {})
    return root


def build_models() -> tuple[LlamaForCausalLM, HFLanguageModel]:
    """Two copies of one random model: `generate` runs on stock attention."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=END,
    )
    torch.manual_seed(0)
    stock = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in stock.parameters():
            if parameter.ndim == 2:
                parameter *= 3  # away from the uniform distribution
    own = LlamaForCausalLM(config)
    own.load_state_dict(stock.state_dict())
    return stock, HFLanguageModel(own)


def generate(model: LlamaForCausalLM, trie: dict[int, Any], prompts: torch.Tensor, beams: int) -> Any:
    width = prompts.shape[1]

    def allowed(_: int, written: torch.Tensor) -> list[int]:
        node = trie
        for token in written[width:].tolist():
            node = node.get(token, {})
        return list(node) or [PAD]

    with torch.no_grad():
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=LENGTH + 1,
            length_penalty=0.0,
            do_sample=False,
            prefix_allowed_tokens_fn=allowed,
            return_dict_in_generate=True,
            output_scores=True,
        )
    sequences = out.sequences[:, width:].reshape(len(prompts), beams, -1).tolist()
    return [[tuple(row[: row.index(END) + 1]) for row in rows if END in row] for rows in sequences]


def ours(model: HFLanguageModel, trie: TitleTrie, prompts: torch.Tensor, beams: int) -> Any:
    session = model.prefill(prompts.tolist())
    results = beam_search(session, trie, [BeamParams(beams, beams)] * len(prompts))
    assert all(isinstance(result, BeamResult) for result in results)
    return [[h.token_ids for h in result.hypotheses] for result in results]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    value = function()
    return time.perf_counter() - started, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--titles", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = titles(arguments.titles, rng)
    stock, own = build_models()
    trie, dictionary = TitleTrie.from_rows(rows, VOCAB), dictionary_trie(rows)
    size = sum(p.numel() for p in stock.parameters()) / 1e6
    print(f"{len(rows)} titles of {LENGTH + 1} tokens; random Llama of {size:.0f} M parameters, fp32")
    print(f"one thread; torch {torch.__version__}, transformers {transformers.__version__}")
    report = []
    for queries, prompt, beams in SETTINGS:
        prompts = torch.from_numpy(rng.integers(2, VOCAB, size=(queries, prompt)))
        ours(own, trie, prompts[:1], beams)  # warm-up
        pairs, agree = [], True
        for _ in range(arguments.repeats):
            a, mine = timed(lambda p=prompts, b=beams: ours(own, trie, p, b))
            b, theirs = timed(lambda p=prompts, b=beams: generate(stock, dictionary, p, b))
            pairs.append((a, b))
            agree &= all(set(x) == set(y) for x, y in zip(mine, theirs, strict=True))
        ratios = [b / a for a, b in pairs]
        entry = {
            "queries": queries,
            "prompt": prompt,
            "beams": beams,
            "ours_s": statistics.median(a for a, _ in pairs),
            "generate_s": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "same_lists": agree,
        }
        report.append(entry)
        print(
            f"queries {queries}  prompt {prompt:4d}  beams {beams:2d}:  ours {entry['ours_s']:.2f} s  "
            f"generate {entry['generate_s']:.2f} s  ratio {entry['ratio']:.1f} "
            f"({entry['ratio_min']:.1f}-{entry['ratio_max']:.1f})  same lists: {agree}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
