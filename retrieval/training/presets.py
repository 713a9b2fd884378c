"""Builds small models to be trained from scratch: their tokenizer, architecture and prompts.

A preset names an architecture of stock transformers, so the checkpoint loads with `AutoModel…` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from genret.retrieval.prompts import CheckpointConfig, PromptTemplate
from genret.retrieval.text import Rendering

PAD, END, QUERY, MENTION, TITLE = "<pad>", "</s>", "<query>", "<mention>", "<title>"
SPECIAL_TOKENS = (PAD, END, QUERY, MENTION, TITLE)
LEAST_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)  # all bytes
MENTION_CONTEXT_CHARS = 80


@dataclass(frozen=True, slots=True)
class Preset:
    """Size and shape of a model trained from scratch."""

    name: str  # name on the command line
    architecture: str  # "llama" (decoder-only, rotary positions) or "bart" (encoder-decoder)
    hidden_size: int  # width, d
    num_layers: int  # number of layers ("bart": of encoder and of decoder each)
    num_heads: int  # number of attention heads
    ffn_size: int  # width of the feed-forward layers
    vocab_size: int = 4096  # entries of the byte-level BPE vocabulary, special tokens included
    dropout: float = 0.0  # dropout ("bart": everywhere; "llama": attention only)
    max_positions: int = 512  # longest sequence in tokens


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", "llama", hidden_size=64, num_layers=2, num_heads=2, ffn_size=176, vocab_size=1024),
        Preset("small", "llama", hidden_size=256, num_layers=4, num_heads=4, ffn_size=704, vocab_size=8192),
        Preset(
            "small-seq2seq", "bart", hidden_size=192, num_layers=3, num_heads=6, ffn_size=768, dropout=0.1
        ),
    )
}


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    """Return a byte-level BPE tokenizer learnt from `texts` and from their lower-case forms.

    A space is put before every text, so a word is one token wherever it stands. Decoding gives the text back
    behind that space, in the form of the normalizer, if any.
    """
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((form for text in texts for form in (text, text.lower())), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, loadable by `AutoTokenizer` and `TextTokenizer`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "additional_special_tokens": [QUERY, MENTION, TITLE],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def scratch_config() -> CheckpointConfig:
    """Return prompts and rendering of every model trained from scratch.

    Queries are put in lower case: a small model learns one spelling of a word in half the time of two.
    """
    plain = PromptTemplate(name="plain", prefix=QUERY, suffix=TITLE, lowercase=True)
    mention = PromptTemplate(
        name="mention",
        prefix=MENTION,
        suffix=TITLE,
        mention_format="{left} [ {mention} ] {right}",
        context_chars=MENTION_CONTEXT_CHARS,
        lowercase=True,
    )
    return CheckpointConfig(
        prompts={"plain": plain, "mention": mention}, rendering=Rendering(prefix=" ", end_token=END)
    )


def build_model(preset: Preset, tokenizer: Tokenizer) -> Any:
    """Return a randomly initialised model (`transformers.PreTrainedModel`) of the preset's shape.

    Weights are drawn from torch's global generator: seed it first.
    """
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    special: dict[str, Any] = {"pad_token_id": ids[PAD], "eos_token_id": ids[END], "bos_token_id": ids[QUERY]}
    vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
    if preset.architecture == "bart":
        from transformers import BartConfig, BartForConditionalGeneration

        return BartForConditionalGeneration(
            BartConfig(
                vocab_size=vocab_size,
                d_model=preset.hidden_size,
                encoder_layers=preset.num_layers,
                decoder_layers=preset.num_layers,
                encoder_attention_heads=preset.num_heads,
                decoder_attention_heads=preset.num_heads,
                encoder_ffn_dim=preset.ffn_size,
                decoder_ffn_dim=preset.ffn_size,
                dropout=preset.dropout,
                max_position_embeddings=preset.max_positions,
                decoder_start_token_id=ids[TITLE],
                forced_eos_token_id=None,
                **special,
            )
        )
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=preset.hidden_size,
            intermediate_size=preset.ffn_size,
            num_hidden_layers=preset.num_layers,
            num_attention_heads=preset.num_heads,
            num_key_value_heads=preset.num_heads,
            attention_dropout=preset.dropout,
            max_position_embeddings=preset.max_positions,
            tie_word_embeddings=True,
            **special,
        )
    )
