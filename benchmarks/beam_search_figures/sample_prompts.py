"""The default model, and prompts of real queries as long as wanted."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from disc_figures.sample_retriever import held_out_queries
from harness.twin_models import Twins
from tokenizers import Tokenizer
from torch import Tensor

CHECKPOINT = Path(__file__).resolve().parent.parent.parent / "data" / "small-model"


def default_model() -> Twins:
    """Load the model that comes with the code."""
    return Twins.load(CHECKPOINT)


def sample_prompts(tokens: int, number: int) -> Tensor:
    """Return prompts that end in different queries, with other queries in front of them.

    Every query stands in the checkpoint's own template, one after the other, as many as fit. What comes out
    is what the model is used to at its end, and as long as wanted.

    Returns:
        Shape: (number, tokens), int64.
    """
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    settings = json.loads((CHECKPOINT / "genret.json").read_text(encoding="utf-8"))
    template = settings["prompts"][settings["default_prompt"]]
    asked = [
        f"{template['prefix']}{query.text.lower()}{template['suffix']}" for query in held_out_queries(None)
    ]
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(asked, add_special_tokens=False)]
    rows = []
    for first in range(number):
        written: list[int] = []
        place = first
        while len(written) < tokens:  # from the last query to the front
            written = [*encoded[place % len(encoded)], *written]
            place += number
        rows.append(written[-tokens:])
    return torch.tensor(rows)
