"""Tiny random checkpoints as real directories (weights, tokenizer, `genret.json`), and indexes for them.

Usage, in a module- or session-scoped fixture::

    checkpoint = make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")
    index = make_index(tmp_path_factory.mktemp("index"), checkpoint)
    retriever = Retriever.open(index, checkpoint)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from genret.retrieval.prompts import CheckpointConfig, PromptTemplate
from genret.retrieval.text import Rendering, TextTokenizer

if TYPE_CHECKING:
    from genret import Retriever

PAD, END, QUERY, MENTION, TITLE = "<pad>", "</s>", "<query>", "<mention>", "<title>"
SPECIAL_TOKENS = (PAD, END, QUERY, MENTION, TITLE)

# Two entities share the title Amazon, one alias is shared, and "Paris" begins another title.
CATALOGUE = (
    "entity_id\ttitle\taliases\tkind\n"
    "Q1\tHamlet\tThe Prince of Denmark\twork\n"
    "Q2\tMacbeth\tThe Scottish Play\twork\n"
    "Q3\tOthello\t\twork\n"
    "Q4\tParis\tCity of Light\tcity\n"
    "Q5\tParis, Texas\t\tcity\n"
    "Q6\tBerlin\t\tcity\n"
    "Q7\tNile\t\triver\n"
    "Q8\tAmazon\tAmazon River\triver\n"
    "Q9\tAmazon\tAmazon.com|The Everything Store\tcompany\n"
    "Q10\tMercury\tQuicksilver|Hg\telement\n"
    "Q11\tMercury (planet)\tQuicksilver\tplanet\n"
    "Q12\tMarie Curie\tMadame Curie|Maria Skłodowska\tperson\n"
)

_RENDERING = Rendering(prefix=" ", end_token=END)
_PROMPTS = {
    "plain": PromptTemplate(name="plain", prefix=QUERY, suffix=TITLE),
    "mention": PromptTemplate(
        name="mention",
        prefix=MENTION,
        suffix=TITLE,
        mention_format="{left}[{mention}]{right}",
        context_chars=30,
    ),
}


def train_tokenizer(
    texts: Iterable[str] = (CATALOGUE,),
    vocab_size: int = 320,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    pre_tokenizer: Any = None,
) -> Tokenizer:
    """A byte-level BPE tokenizer with special tokens as its first ids; every text can be written with it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def checkpoint_config() -> CheckpointConfig:
    """Prompts with special tokens around the query, and titles behind a space."""
    return CheckpointConfig(prompts=_PROMPTS, rendering=_RENDERING)


def make_checkpoint(
    folder: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    config: CheckpointConfig | None = None,
    model_vocab_size: int | None = None,
    max_positions: int = 128,
    spread: float = 10.0,
) -> Path:
    """Write a tiny random model whose next-token distributions are neither flat nor certain.

    Args:
        folder: Where to; made when missing.
        architecture: "llama" (decoder-only) or "bart" (encoder-decoder).
        seed: Of the weights.
        tokenizer: None: `train_tokenizer()`.
        config: Contents of genret.json; None: `checkpoint_config()`.
        model_vocab_size: Number of logits; None: as many as the tokenizer has ids.
        max_positions: Positions of the model (for "bart": of encoder and of decoder).
        spread: Factor of the weights; with 1 all next tokens are about equally probable.
    """
    import torch

    tokenizer = tokenizer or train_tokenizer()
    save_tokenizer(tokenizer, folder)
    (config or checkpoint_config()).save(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(architecture, model_vocab_size or tokenizer.get_vocab_size(), max_positions)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(spread)
    model.save_pretrained(folder)
    return folder


def make_index(
    folder: Path, checkpoint: Path | TextTokenizer, catalogue: str = CATALOGUE, **options: Any
) -> Path:
    """Build an index over a TSV text with the tokenizer and the rendering of a checkpoint.

    Args:
        folder: The index goes to `folder / "index"`.
        checkpoint: Checkpoint directory, or a tokenizer (then `options` may hold `rendering`).
        catalogue: Contents of the TSV file, header included.
        options: Further fields of `BuildOptions`.
    """
    from genret.index_builder.build import build_index
    from genret.index_builder.build_options import BuildOptions

    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "titles.tsv"
    source.write_text(catalogue, encoding="utf-8")
    if isinstance(checkpoint, TextTokenizer):
        tokenizer = checkpoint
    else:
        tokenizer = TextTokenizer.load(checkpoint)
        options.setdefault("rendering", CheckpointConfig.load(checkpoint).title_rendering())
    build_index(source, tokenizer, BuildOptions(out=folder / "index", **options))
    return folder / "index"


def open_retriever(folder: Path, architecture: str, **options: Any) -> Retriever:
    """Open what `make_checkpoint` and `make_index` write; `options` are those of the model."""
    from genret import Retriever

    checkpoint = make_checkpoint(folder / "model", architecture, **options)
    return Retriever.open(make_index(folder, checkpoint), checkpoint, device="cpu")


def plain_model(checkpoint: Path) -> Any:
    """Load the model of a checkpoint without any of our decoding."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = json.loads((checkpoint / "config.json").read_text())["model_type"]
    return (
        (AutoModelForSeq2SeqLM if kind == "bart" else AutoModelForCausalLM).from_pretrained(checkpoint).eval()
    )


def plain_logprob(model: Any, prompt: list[int], row: Iterable[int]) -> float:
    """Return log P of a row behind a prompt, by one forward pass of a `plain_model`."""
    from tests.verified_architectures import plain_logits

    row = list(row)
    steps = plain_logits(model, prompt, [row[:-1]])[0].double().log_softmax(-1)
    return float(steps[range(len(row)), row].sum())


def _model(architecture: str, vocab_size: int, max_positions: int) -> Any:
    from tests.tiny_transformers import from_config

    own = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "max_position_embeddings": max_positions}
    if architecture == "bart":
        own["decoder_start_token_id"] = SPECIAL_TOKENS.index(TITLE)
    return from_config(architecture, vocab_size, own)
