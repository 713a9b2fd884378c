"""Tiny random transformers, and what they say about every title by plain forward passes."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from tests.beam_oracles import Listed, Row, ValidTokens
from tests.fakes import tokens_after
from tests.tree_oracles import PlainPasses
from tests.verified_architectures import BART, COMMON, T5

PAD, BOS, END = 0, 1, 2
FIRST_LETTER = 3  # titles and prompts are written with the tokens from here on

_DECODER = {**COMMON, "num_hidden_layers": 2, "max_position_embeddings": 64}
_SHALLOW = {"encoder_layers": 1, "decoder_layers": 2}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**_DECODER, "num_key_value_heads": 2}),
    "gpt2": ("GPT2Config", {**_DECODER, "n_inner": 48}),
    "qwen2": ("Qwen2Config", {**_DECODER, "num_key_value_heads": 1}),
    # BART's default gives the end token probability one at the end.
    "bart": ("BartConfig", {**BART, **_SHALLOW, "dropout": 0.1, "forced_eos_token_id": None}),
    "t5": ("T5Config", {**T5, "num_decoder_layers": 2}),
}
ARCHITECTURES = tuple(_CONFIGS)


def from_config(
    name: str, vocab_size: int, changes: Mapping[str, Any] = MappingProxyType({})
) -> PreTrainedModel:
    """A model with the weights that transformers begins with, and some options changed."""
    config_name, options = _CONFIGS[name]
    config = getattr(transformers, config_name)(**{"vocab_size": vocab_size, **options, **changes})
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_config(config)


def build(name: str, vocab_size: int, seed: int = 0) -> PreTrainedModel:
    """A random model whose next-token distributions are neither flat nor certain, in float32 on the CPU."""
    torch.manual_seed(seed)
    model = from_config(name, vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 1.0 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        # Logits of standard deviation 1 to 2. T5 divides by the root of the width before its head.
        deviation = 0.8 if name == "t5" else 1.5 / model.config.hidden_size**0.5
        model.get_output_embeddings().weight.normal_(0.0, deviation)
    return model


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(FIRST_LETTER, vocab_size) for _ in range(length)] for length in lengths]


def random_titles(num_titles: int, lengths: Sequence[int], num_letters: int, seed: int = 0) -> list[Row]:
    """Distinct rows, end token included, in sorted order; few letters make many shared prefixes."""
    rng = random.Random(seed)
    letters = range(FIRST_LETTER, FIRST_LETTER + num_letters)
    possible = [row for length in lengths for row in itertools.product(letters, repeat=length)]
    return sorted((*row, END) for row in rng.sample(possible, num_titles))


class Enumeration(ValidTokens):
    """Everything a model says about a set of rows after one prompt, by plain forward passes."""

    def __init__(self, model: PreTrainedModel, prompt: Sequence[int], rows: Sequence[Row]) -> None:
        prefixes = list(tokens_after(rows))
        logprobs = PlainPasses(model).logprobs([(tuple(prompt), prefix) for prefix in prefixes]).tolist()
        super().__init__(rows, dict(zip(prefixes, logprobs, strict=True)).__getitem__)

    def ranking(self) -> list[Listed]:
        """Rows, most probable first."""
        listed = [Listed(self.logprob(row), row) for row in self.rows]
        return sorted(listed, key=lambda one: one.score, reverse=True)

    def smallest_gap(self) -> float:
        """Smallest difference between two scores that a beam search may compare."""
        by_depth: defaultdict[int, list[float]] = defaultdict(list)
        for prefix in self._allowed:
            by_depth[len(prefix)].append(self.logprob(prefix))
        by_depth[-1] = [self.logprob(row) for row in self.rows]
        ordered = [sorted(scores) for scores in by_depth.values()]
        return min(high - low for scores in ordered for low, high in itertools.pairwise(scores))


class ForwardMeter:
    """Counts what runs through the first layer of a model's encoder and decoder.

    Attributes:
        encoder: (batch, tokens) of every pass through the encoder.
        decoder: The same for the decoder, that is, for all of a causal model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.encoder: list[tuple[int, int]] = []
        self.decoder: list[tuple[int, int]] = []
        if model.config.is_encoder_decoder:
            self._watch(_first_layer(model.get_encoder()), self.encoder)
        self._watch(_first_layer(model.get_decoder()), self.decoder)

    @staticmethod
    def _watch(layer: nn.Module, passes: list[tuple[int, int]]) -> None:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            passes.append((hidden.shape[0], hidden.shape[1]))

        layer.register_forward_pre_hook(note, with_kwargs=True)


def _first_layer(stack: nn.Module) -> nn.Module:
    lists = [module for module in stack.modules() if isinstance(module, nn.ModuleList)]
    return lists[0][0]
