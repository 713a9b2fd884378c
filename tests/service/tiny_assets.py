"""A random Llama with its own tokenizer, and an index over a dozen titles: real files, made in a second."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, VectorBuildOptions
from genret.retrieval.prompts import BUILT_IN, CheckpointConfig, PromptTemplate
from genret.retrieval.text import TextTokenizer

CATALOGUE = """title\tentity_id\taliases\tkind
Hamlet\tQ1\tThe Prince of Denmark\twork
Macbeth\tQ2\t\twork
Othello\tQ3\t\twork
Paris\tQ4\tCity of Light\tcity
Paris, Texas\tQ5\t\tcity
Berlin\tQ6\t\tcity
Nile\tQ7\t\triver
Amazon\tQ8\t\triver
Amazon\tQ9\tAmazon.com\tcompany
Mercury\tQ10\tQuicksilver\telement
Iron\tQ11\t\telement
Marie Curie\tQ12\tMadame Curie\tperson
"""
NUM_ENTITIES = 12
MAX_POSITIONS = 256
LONG = PromptTemplate("long", prefix="Retrieve the entity for my query.\nQuery: ", suffix="\nEntity:")


def make_checkpoint(folder: Path) -> Path:
    """Write a tiny random Llama and its tokenizer."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=["</s>"], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CATALOGUE.splitlines(), trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        eos_token_id=0,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    CheckpointConfig(prompts={**BUILT_IN, LONG.name: LONG}).save(folder)
    return folder


def make_index(folder: Path, checkpoint: Path, vectors: VectorBuildOptions | None = None) -> Path:
    """Build an index over the titles for the checkpoint's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "titles.tsv"
    source.write_text(CATALOGUE, encoding="utf-8")
    rendering = CheckpointConfig.load(checkpoint).title_rendering()
    options = BuildOptions(out=folder / "tiny", rendering=rendering, vectors=vectors)
    build_index(source, TextTokenizer.load(checkpoint), options)
    return folder / "tiny"
