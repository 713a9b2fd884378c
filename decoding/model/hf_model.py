"""Adapts stock transformers models to `LanguageModel`: causal and encoder-decoder checkpoints, one token
tree.

Every prompt is run once. Its keys and values (for an encoder-decoder, those of the cross-attention) are kept
once per query, and all branches of all queries advance in one forward pass. The module stores nothing that
belongs to a request: one model may serve several sessions in several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from genret.decoding.errors import UnsupportedModelError
from genret.decoding.language_model import PromptPrefix
from genret.decoding.model import architectures
from genret.decoding.model.chains import TreeChains
from genret.decoding.model.hf_session import (
    CausalSession,
    EncoderDecoderSession,
    TreeModel,
    TreeSession,
    use_true_positions,
)
from genret.decoding.model.model_loading import load_pretrained, refuse_float16_on_cpu
from genret.decoding.model.self_check import SelfCheck
from genret.decoding.model.token_tree import DEFAULT_COLLECTION, CollectionPolicy
from genret.decoding.model.tree_attention import TREE_ATTENTION, register_tree_attention
from genret.decoding.model.tree_cache import TreePrefix, checked_prefix
from genret.decoding.params import check_continuations, check_prefix, check_prompts
from genret.decoding.side_by_side import undivided


class HFLanguageModel:
    """A `LanguageModel` over a transformers model, put into evaluation mode and given the tree's attention.

    Outside a session the model works as before (with scaled dot product attention), so a model in training
    may be wrapped for an evaluation.

    Args:
        model: A causal or encoder-decoder model with a language modelling head, weights in place.
        decoder_prompt: Tokens before every title of an encoder-decoder; None takes the checkpoint's own
            (`architectures.decoder_prompt`). Not for causal models.
        collection: When sessions collect dead branches.
        pack_frontiers: Whether sessions of a causal model leave padding branches out of its layers, which
            waits for the device in every step. None: on a CPU, where that is free.
        checked: Whether to refuse architectures that are not exact; False for examinations
            (`decoding.conformance`).

    Attributes:
        pretrained: The transformers model itself; its own `generate` and forward passes work as before.
        vocab_size: Number of logits, V.
        is_encoder_decoder: Whether an encoder reads the prompts, so that titles alone take the decoder's
            positions.
        decoder_prompt: Tokens before every title of an encoder-decoder; empty for causal models.

    Raises:
        UnsupportedModelError: the architecture cannot be decoded exactly.
        ModelLoadError: the model would compute in float16 on a CPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        decoder_prompt: Sequence[int] | None = None,
        collection: CollectionPolicy = DEFAULT_COLLECTION,
        pack_frontiers: bool | None = None,
        checked: bool = True,
    ) -> None:
        trusted = architectures.check_supported(model.config) if checked else True
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        if decoder_prompt is not None and not (self.is_encoder_decoder and decoder_prompt):
            raise ValueError("decoder_prompt must not be empty and is for encoder-decoders only")
        refuse_float16_on_cpu(model.dtype, model.device)
        model.eval()  # type: ignore[no-untyped-call]
        self.pretrained = model
        self.decoder_prompt: tuple[int, ...] = ()
        if self.is_encoder_decoder:
            self.decoder_prompt = tuple(decoder_prompt or architectures.decoder_prompt(model))
        self._tree = TreeModel(
            inner=model,
            position_limit=architectures.position_limit(model),
            shared_bias=architectures.shared_relative_bias(model),
            collection=collection,
            pack_frontiers=pack_frontiers,
        )
        self.vocab_size = architectures.vocab_size(model)
        self._num_input_tokens = known = architectures.input_vocab_size(model)
        if any(not 0 <= token < known for token in self.decoder_prompt):
            raise ValueError(f"decoder_prompt must be in [0, {known}), got {list(self.decoder_prompt)}")
        check = None if trusted else SelfCheck.of(model, self.decoder_prompt)
        self._replace_attention()
        if check is not None:
            check.refuse_if_different(self)

    @classmethod
    def load(
        cls,
        path_or_hub_id: str | Path,
        device: str | torch.device = "auto",
        dtype: str = "auto",
        trust_remote_code: bool = False,
        num_threads: int | None = None,
        collection: CollectionPolicy = DEFAULT_COLLECTION,
        adapter: Path | None = None,
    ) -> HFLanguageModel:
        """Load a checkpoint with safetensors weights.

        Args:
            path_or_hub_id: Directory, or name on the Hugging Face hub.
            device: "auto" (CUDA if available, else CPU) or a torch device.
            dtype: "auto", "float32", "bfloat16", "float16" or "float64"; see `decoding.model.model_loading`.
            trust_remote_code: Whether to run code that comes with the weights.
            num_threads: Torch threads of this process; None leaves them as they are.
            collection: When sessions collect dead branches.
            adapter: Folder of a PEFT adapter to merge into the weights, or None.

        Raises:
            ModelLoadError: no usable checkpoint there, or dtype and device do not go together.
            UnsupportedModelError: the architecture cannot be decoded exactly.
        """
        loaded = load_pretrained(path_or_hub_id, device, dtype, trust_remote_code, num_threads, adapter)
        return cls(loaded, collection=collection)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self.pretrained.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        dtype: torch.dtype = self.pretrained.dtype
        return dtype

    @property
    def max_positions(self) -> int | None:
        """Most positions of prompt and title together; of the title alone for encoder-decoders."""
        limit = self._tree.position_limit
        return None if limit is None else limit - len(self.decoder_prompt)

    @property
    def max_prompt_tokens(self) -> int | None:
        """Most prompt tokens accepted when no title follows."""
        if self.is_encoder_decoder:
            return architectures.encoder_position_limit(self.pretrained)
        return self._tree.position_limit

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> TreeSession:
        """Run every prompt once; see `LanguageModel.prefill`.

        Raises:
            PromptTooLongError: a prompt is longer than `max_prompt_tokens`.
            ValueError: as of `check_prompts` and `check_continuations`, or another model made the prefix.
            RuntimeError: the model was put back into training mode.
        """
        check_prompts(prompts, self._num_input_tokens, self.max_prompt_tokens)
        self._check_evaluating()
        if self.is_encoder_decoder:
            if prefix is not None:
                raise ValueError(
                    f"model type {self.pretrained.config.model_type!r} is an encoder-decoder, which shares "
                    "no prefix: its encoder reads prompts in both directions"
                )
            return EncoderDecoderSession(self._tree, prompts, self.decoder_prompt)
        if prefix is None:
            return CausalSession(self._tree, prompts)
        made_here = checked_prefix(prefix, self.pretrained)
        check_continuations(made_here.token_ids, prompts)
        return CausalSession(self._tree, prompts, made_here)

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> TreeChains:
        """Run every prompt once; see `LanguageModel.prefill_chains`. Errors are those of `prefill`."""
        return TreeChains(self.prefill(prompts, prefix))

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Run tokens that many prompts begin with; see `LanguageModel.share_prefix`. None for
        encoder-decoders. Errors are those of `check_prefix`, and RuntimeError for a model in training mode.
        """
        if self.is_encoder_decoder:
            return None
        check_prefix(token_ids, self._num_input_tokens, self.max_prompt_tokens)
        self._check_evaluating()
        with undivided():
            return TreePrefix(self.pretrained, token_ids, CausalSession(self._tree, [token_ids]).cache)

    def _replace_attention(self) -> None:
        register_tree_attention()
        self.pretrained.set_attn_implementation(TREE_ATTENTION)
        if architectures.text_config(self.pretrained.config)._attn_implementation != TREE_ATTENTION:
            raise UnsupportedModelError(
                f"model type {self.pretrained.config.model_type!r} does not let its attention be replaced"
            )
        embedding = architectures.slot_numbered_positions(self.pretrained)
        if embedding is not None:
            use_true_positions(embedding)

    def _check_evaluating(self) -> None:
        if self.pretrained.training:
            raise RuntimeError("the model is in training mode again; call its eval() before decoding")
