"""One model twice over the same weights: as transformers runs it, and on the token tree's attention.

Random weights are scaled so that logits have the spread of a trained model's: beams then differ by much more
than rounding, and no two of them tie.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.model_loading import load_pretrained

PAD, END, FIRST = 0, 1, 2  # FIRST: the first token that titles and prompts are made of
SPREAD = 6.0  # standard deviation of the logits: the likeliest few of 32,000 tokens hold most of the mass
_HEAD = 64
_INITIAL = 0.02  # standard deviation of transformers' initial weights


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a Llama; the defaults make 100 M parameters."""

    vocab_size: int = 32_000
    hidden: int = 768  # a multiple of 64
    layers: int = 12
    kv_heads: int = 4
    intermediate: int = 2048  # width of the feed-forward layers
    positions: int = 4096

    def config(self) -> LlamaConfig:
        """Return the configuration of transformers."""
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // _HEAD,
            head_dim=_HEAD,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=True,
            initializer_range=_INITIAL,
            pad_token_id=PAD,
            eos_token_id=END,
            bos_token_id=END,
        )


def random_llama(
    sizes: Sizes, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> LlamaForCausalLM:
    """Return a random Llama, its weights made on the device, in torch's default type unless one is said."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device), torch.no_grad():
            model = LlamaForCausalLM(sizes.config()).eval()
            model.model.norm.weight *= SPREAD / (_INITIAL * math.sqrt(sizes.hidden))
    finally:
        torch.set_default_dtype(before)
    return model


def random_model(
    vocab_size: int, hidden: int, layers: int, dtype: torch.dtype | None = None
) -> HFLanguageModel:
    """Return a random Llama without shared heads, on the CPU: 102 M parameters with 50,257, 768 and 9."""
    heads = max(1, hidden // 64)
    sizes = Sizes(vocab_size, hidden, layers, heads, 8 * hidden // 3, 1024)
    return HFLanguageModel(random_llama(sizes, dtype=dtype))


def synchronize(device: torch.device) -> None:
    """Wait until a device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Twins:
    """A model for `generate`, which stays as it is, and models for the token tree that share its weights."""

    def __init__(self, stock: PreTrainedModel) -> None:
        self.stock = stock.eval()
        weights = {id(tensor): tensor for tensor in (*stock.parameters(), *stock.buffers())}
        self.own: PreTrainedModel = copy.deepcopy(stock, weights)  # modules are copied, weights are not

    @classmethod
    def random(cls, sizes: Sizes, device: torch.device | str = "cpu") -> Twins:
        """Make a random Llama, its weights on the device from the start."""
        return cls(random_llama(sizes, device))

    @classmethod
    def load(cls, checkpoint: Path) -> Twins:
        """Load a checkpoint in float32, on the CPU."""
        return cls(load_pretrained(checkpoint, "cpu", "float32", trust_remote_code=False, num_threads=None))

    def model(self) -> HFLanguageModel:
        """Return the model for the tree."""
        return HFLanguageModel(self.own)

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return int(self.stock.config.vocab_size)

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token, over all layers."""
        config = self.stock.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        width = config.num_key_value_heads * size
        return int(2 * config.num_hidden_layers * width * self.stock.dtype.itemsize)

    @property
    def num_parameters(self) -> int:
        """Parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.stock.parameters())
