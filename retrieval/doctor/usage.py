"""How a checkpoint should be used: prompt, end token, dtype, memory, seconds per query, and what to type."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.beam_search import beam_search
from decoding.conformance.vocabulary import writable_tokens
from decoding.hf_model import HFLanguageModel
from decoding.model_loading import SMALL_MODEL_PARAMETERS, automatic_dtype
from decoding.params import BeamParams
from decoding.title_trie import TitleTrie
from retrieval.checkpoints import SETTINGS_FILE, settings_folder
from retrieval.limits import Limits
from retrieval.prompts import CheckpointConfig
from retrieval.text import Rendering, TextTokenizer

# A query as measured.
_PROMPT_TOKENS = 48
_TITLES = 10_000
_TITLE_TOKENS = 6
_BEAMS = 10
_REPEATS = 3
_SEED = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """How a checkpoint should be used.

    Attributes:
        prompt: The template and where it comes from.
        end_token: The token that closes a title; None where the tokenizer names none.
        dtype: What it should be computed in.
        why_dtype: Why.
        weights_bytes: Memory of the weights in that type.
        kv_bytes_per_token: Memory of one token of a prompt or of a branch in that type.
        query_s: Median seconds of one query, by itself.
        query: What that query was.
        commands: What to type, in this order.
    """

    prompt: str
    end_token: str | None
    dtype: str
    why_dtype: str
    weights_bytes: int
    kv_bytes_per_token: int
    query_s: float
    query: str
    commands: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A document of plain types."""
        return asdict(self) | {"commands": list(self.commands)}


def find_usage(
    place: str, model: PreTrainedModel, own_dtype: torch.dtype, progress: Callable[[str, int, int], None]
) -> Usage:
    """Read what a checkpoint says of itself and time a few queries in the type that it should be used in.

    Args:
        place: Directory, GGUF file, adapter or hub id.
        model: Its weights, which are converted to that type.
        own_dtype: The type that the checkpoint is stored in.
        progress: Called with a stage, and how much of it is done.

    Raises:
        ModelError: its tokenizer or its `genret.json` cannot be read.
    """
    tokenizer = TextTokenizer.load(place)
    folder = settings_folder(Path(tokenizer.source))
    config = CheckpointConfig.load(folder)
    dtype = automatic_dtype(model.num_parameters(), own_dtype, model.device)
    name = str(dtype).removeprefix("torch.")
    wrapped = HFLanguageModel(model.to(dtype), checked=False)  # type: ignore[arg-type]
    query_s, query = _time_queries(wrapped, progress)
    quoted = shlex.quote(place)
    taught = (folder / SETTINGS_FILE).is_file()
    writes = not taught and not wrapped.is_encoder_decoder and Path(place).exists()  # no hub id, no wheel
    commands = (f"genret init-model {quoted}",) if writes else ()
    return Usage(
        prompt=_prompt(folder, config, wrapped.is_encoder_decoder),
        end_token=(config.rendering or Rendering()).end_token or tokenizer.end_token,
        dtype=name,
        why_dtype=_why(model.num_parameters(), name),
        weights_bytes=sum(p.nbytes for p in model.parameters()),
        kv_bytes_per_token=_kv_bytes_per_token(wrapped),
        query_s=query_s,
        query=query,
        commands=(
            *commands,
            f"genret build CATALOGUE --tokenizer {quoted} --out my.index",
            f"genret serve my.index --model {quoted} --dtype {name}",
        ),
    )


def _prompt(folder: Path, config: CheckpointConfig, is_encoder_decoder: bool) -> str:
    if (folder / SETTINGS_FILE).is_file():
        return f"{config.default_prompt!r} of its {SETTINGS_FILE}"
    if is_encoder_decoder:
        return "none that it knows: teach it with `genret train --model`"
    if config.chat is not None:
        return f"its chat template; it has no {SETTINGS_FILE}, which `genret init-model` writes"
    return f"few-shot; it has no chat template and no {SETTINGS_FILE}, which `genret init-model` writes"


def _why(parameters: int, dtype: str) -> str:
    if parameters < SMALL_MODEL_PARAMETERS:
        return f"below {SMALL_MODEL_PARAMETERS // 10**6} M parameters less gains little"
    if dtype == "float32":
        return "this device computes nothing shorter faster"
    return "float32 where an order must be the model's own"


def _time_queries(model: HFLanguageModel, progress: Callable[[str, int, int], None]) -> tuple[float, str]:
    """Median seconds of a beam search over made-up titles, and what it was."""
    generator = torch.Generator().manual_seed(_SEED)
    allowed = writable_tokens(model.pretrained)

    def draw(*shape: int) -> Any:
        return allowed[torch.randint(len(allowed), shape, generator=generator)].tolist()

    trie = TitleTrie.from_rows(draw(_TITLES, _TITLE_TOKENS), model.vocab_size, model.device)
    longest = Limits.of(model).prompt_tokens(_TITLE_TOKENS)
    length = _PROMPT_TOKENS if longest is None else min(longest, _PROMPT_TOKENS)
    params = BeamParams(k=_BEAMS, beam_size=_BEAMS)
    taken = []
    for number in range(1 + _REPEATS):  # the first one fills caches
        progress("queries", number, 1 + _REPEATS)
        prompt = draw(length)
        began = time.perf_counter()
        beam_search(model.prefill([prompt]), trie, [params])
        taken.append(time.perf_counter() - began)
    progress("queries", 1 + _REPEATS, 1 + _REPEATS)
    what = f"{length} tokens of prompt, {_BEAMS} beams, titles of {_TITLE_TOKENS} tokens, one query at a time"
    return median(taken[1:]), what


def _kv_bytes_per_token(model: HFLanguageModel) -> int:
    """What one token more of a prompt holds."""
    token = int(writable_tokens(model.pretrained)[0])
    few, more = (model.prefill([[token] * length]).usage.held_bytes for length in (1, 5))
    return (more - few) // 4
