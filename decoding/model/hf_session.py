"""Runs decode sessions over stock transformers models: the token tree of one batch of prompts.

`TreeSession` grows the tree, collects its dead branches and counts memory. `CausalSession` writes the prompts
into the tree's cache. `EncoderDecoderSession` runs the encoder once and keeps the cross-attention's keys and
values once per query; the decoder's start tokens are the prompt of its tree.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from genret.decoding.constraints import at_least_float32
from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage
from genret.decoding.model.shared_passes import ModelPass, run_pass, wait_for_turn
from genret.decoding.model.token_tree import BranchStep, CollectionPolicy, PromptLayout, TokenTree
from genret.decoding.model.tree_attention import BranchPass, PromptPass, PromptPieces
from genret.decoding.model.tree_cache import PackedFrontier, PackedWrites, TreeCache, TreePrefix
from genret.decoding.model.whole_trees import WholeTreePass, WholeTreeWriter
from genret.decoding.row_trees import RowTrees
from genret.decoding.side_by_side import max_rows


@dataclass(frozen=True, slots=True, eq=False)
class TreeModel:
    """A transformers model with the tree's attention, and its limits."""

    inner: PreTrainedModel  # The model
    position_limit: int | None  # Positions of the decoder, None without bound
    # Module with the relative bias table of the layers that have none themselves.
    shared_bias: nn.Module | None
    collection: CollectionPolicy  # When sessions collect dead branches
    # Whether decoder-only sessions compute only the live branches of a frontier; None: on a CPU.
    pack_frontiers: bool | None = None
    cache_argument: str = field(init=False)  # transformers 5.24 calls it `cache`, before it `past_key_values`

    def __post_init__(self) -> None:
        argument = "cache" if accepts(self.inner, "cache") else "past_key_values"
        object.__setattr__(self, "cache_argument", argument)

    @property
    def no_mask(self) -> Tensor:
        """Any mask with four axes: it keeps transformers from building one out of slot numbers."""
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.inner.device)

    def forward(
        self, tokens: Tensor, positions: Tensor, tree: object, cache: Cache | PromptPieces, **options: Any
    ) -> Tensor:
        """Run a decoder-only model over tokens, (Q, B); returns its logits, (Q, B, V), in its type."""
        output = self.inner(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.no_mask,
            use_cache=True,
            tree=tree,
            shared_bias=self.shared_bias,
            **{self.cache_argument: cache},
            **options,
        )
        logits: Tensor = output.logits
        return logits


class TreeSession(ABC):
    """The token trees of one batch of prompts (`decoding.language_model.DecodeSession`).

    Logits are float32, and float64 for a model that computes in float64. `prompts` is the layout of the
    decoder's prompts, `prefix` what all of them share.
    """

    root_logits: Tensor

    def __init__(self, model: TreeModel, prompts: PromptLayout, prefix: TreePrefix | None = None) -> None:
        self.model = model
        self._prefix = prefix
        self._tree = TokenTree(prompts)
        self.cache = TreeCache(() if prefix is None else prefix.segments)
        self._steps_since_collection = 0
        self._num_collections = 0
        self._token_bytes = 0  # Keys and values of one token in all layers
        self._per_branch_bytes = 0  # Most bytes that one cache per branch would have held

    @property
    def usage(self) -> KvUsage:
        """Key/value memory; see `DecodeSession.usage`."""
        cross = self._cross_bytes
        return KvUsage(
            held_bytes=self.cache.held_bytes + cross,
            used_bytes=self.cache.used_bytes + cross,
            peak_bytes=self.cache.peak_bytes + cross,
            per_branch_bytes=self._per_branch_bytes,
            shared_bytes=0 if self._prefix is None else self._prefix.kv_bytes,
            num_collections=self._num_collections,
        )

    @property
    def _cross_bytes(self) -> int:
        """Bytes of the cross-attention's keys and values."""
        return 0

    def _count_from_here(self) -> None:
        """Reset the memory counts. Needs the prompts in the cache."""
        self._token_bytes = self.cache.slot_bytes
        self._per_branch_bytes = 0
        self._note_branches(1, 0)
        self._num_collections = 0

    def _note_branches(self, branches: int, depth: int) -> None:
        """Count one frontier of `branches` per query, padding included, `depth` tokens below the prompt."""
        path_bytes = (self._tree.prompts.longest + depth) * self._token_bytes
        held = branches * (self._tree.num_queries * path_bytes + self._cross_bytes)
        self._per_branch_bytes = max(self._per_branch_bytes, held)

    def keep_levels(self) -> None:
        """Keep the branches of every depth; see `DecodeSession.keep_levels`. Disables collection."""
        self._tree.keep_levels()

    @torch.no_grad()
    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on B branches of every query; see `DecodeSession.step`.

        Waits for the device only to collect dead branches and to pack frontiers.

        Raises:
            PromptTooLongError: a query with live branches has used up the model's positions.
            ValueError: the shapes do not fit the session, or it cannot write at `depth`.
        """
        queries = self._tree.num_queries
        if parents.shape != token_ids.shape or parents.ndim != 2 or parents.shape[0] != queries:
            raise ValueError(
                f"parents and token_ids must both have shape ({queries}, B), "
                f"got {tuple(parents.shape)} and {tuple(token_ids.shape)}"
            )
        if parents.shape[1] == 0:
            raise ValueError("a frontier needs at least one branch, got B = 0")
        depth = self._tree.checked_depth(depth)
        limit = self.model.position_limit
        overflows = limit is not None and self._tree.prompts.longest + depth > limit
        if overflows:
            self._refuse_live_overflow(parents, depth)
        self._make_room(parents)
        growth = self._tree.grow(parents, depth)
        positions = growth.positions.expand(parents.shape)
        if overflows and limit is not None:
            positions = positions.clamp(max=limit - 1)  # padding of queries that have ended
        tree = BranchPass(growth, self.cache, self._packed(parents, depth))
        logits = at_least_float32(self._forward(token_ids, positions, tree))
        self._steps_since_collection += 1
        self._note_branches(parents.shape[1], depth)
        return logits

    @torch.no_grad()
    def collect(self) -> None:
        """Free every slot that is not on the path of a branch of the last frontier. Waits for the device.

        Changes no later result. Does nothing when levels are kept.
        """
        self._collect(None, self._tree.width)

    def _packed(self, parents: Tensor, depth: int) -> PackedFrontier | None:
        """Return the live branches of a frontier; None to compute all branches."""
        return None

    def _make_room(self, parents: Tensor) -> None:
        """Let the cache take one more frontier, after a collection if one is due."""
        width, held = parents.shape[1], self._tree.num_slots
        # Every branch keeps its whole path alive. So collecting under pressure gains nothing if even one path
        # per query leaves no room, and nothing is dead if there is only one path.
        full = self._tree.depth + width <= self.cache.capacity < held + width
        if held > self._tree.depth and self.model.collection.is_due(self._steps_since_collection, full):
            self._collect(parents, width)
        self.cache.make_room(width)

    def _collect(self, parents: Tensor | None, width: int) -> None:
        kept = self._tree.collect(parents)
        self._steps_since_collection = 0
        if kept is not None:
            self.compact(kept, width)

    def _refuse_live_overflow(self, parents: Tensor, depth: int) -> None:
        """Raise if a query that still has branches is out of positions.

        Waits for the device, but only once a prompt of the batch has no position left.
        """
        live = (parents >= 0).any(dim=1).tolist()
        limit = self.model.position_limit
        for length, alive in zip(self._tree.prompts.lengths, live, strict=True):
            needed = length + depth
            if alive and limit is not None and needed > limit:
                raise PromptTooLongError(
                    f"the next token needs position {needed} of {limit}: the prompt has "
                    f"{length} tokens and {depth - 1} were written after it"
                )

    @torch.no_grad()
    def select(self, queries: Sequence[int], branches: bool = False) -> Self:
        """Return a session over some of the queries; see `DecodeSession.select`."""
        chosen = torch.tensor(list(queries), dtype=torch.int64, device=self.root_logits.device)
        other = self._select(queries, chosen, branches)
        other._count_from_here()
        return other

    def _select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> Self:
        """`select` without its memory counts; `chosen` are the queries on the device, (n,), int64."""
        other = copy.copy(self)
        other._tree = self._tree.select(queries, chosen, branches)
        other.cache = self.cache.select(chosen, other._tree.prompts.width, branches)
        other.root_logits = self.root_logits[chosen]
        if not branches:
            other._steps_since_collection = 0
        return other

    @property
    def prompts(self) -> PromptLayout:
        """Layout of the decoder's prompts."""
        return self._tree.prompts

    def compact(self, kept: Tensor, width: int) -> None:
        """Keep some tail slots; see `TreeCache.compact`. Chains find their dead slots themselves."""
        self.cache.compact(kept, width)
        self._num_collections += 1

    def run_chains(self, token_ids: Tensor, step: BranchStep) -> Tensor:
        """Write the next tokens of chains, (Q, L), for which there is room; returns logits, (Q, L, V)."""
        logits = self._forward(token_ids, step.positions, BranchPass(step, self.cache))
        self._note_branches(1, step.largest_position + 1 - self._tree.prompts.longest)
        return logits

    def tree_writer(self, trees: RowTrees) -> WholeTreeWriter:
        """Return a writer of whole trees below the prompts; see `DecodeSession.tree_writer`."""
        longest = int(trees.depths.max(initial=0))
        self._note_branches(max(trees.widths, default=0), longest)
        return WholeTreeWriter(trees, self)

    @torch.no_grad()
    def run_whole_trees(self, tree: WholeTreePass) -> Tensor:
        """Return logits of one pass over nodes of whole trees, in the model's type. Shape: (1, P, V)."""
        self.cache.note_beside(tree.piece.tokens.shape[1], tree.kept.length)
        return self._forward_whole_trees(tree)

    @abstractmethod
    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        """Logits of one pass in the model's type; `positions` shape: (Q, B), int64. Shape: (Q, B, V)."""

    @abstractmethod
    def _forward_whole_trees(self, tree: WholeTreePass) -> Tensor:
        """Logits of a pass over nodes of whole trees. Shape: (1, P, V)."""


class CausalSession(TreeSession):
    """Session of a decoder-only model over whole, non-empty prompts that continue the prefix, if any."""

    def __init__(
        self, model: TreeModel, prompts: Sequence[Sequence[int]], prefix: TreePrefix | None = None
    ) -> None:
        shared = 0 if prefix is None else len(prefix.token_ids)
        lengths = [len(prompt) for prompt in prompts]
        super().__init__(model, PromptLayout(lengths, model.inner.device, shared), prefix)
        self.root_logits = self._run_prompts([prompt[shared:] for prompt in prompts])
        self._count_from_here()

    @torch.no_grad()
    def _run_prompts(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts behind the prefix. Returns logits of shape (Q, V)."""
        most, width = max_rows(), self._tree.prompts.width
        if most is None or len(prompts) * width <= most:
            return self._write_prompts(prompts, self.cache)
        at_once = max(1, most // width)
        parts = [prompts[first : first + at_once] for first in range(0, len(prompts), at_once)]
        written = [PromptPieces() for _ in parts]
        logits = [self._write_prompts(*part) for part in zip(parts, written, strict=True)]
        PromptPieces.store(written, self.cache)
        return torch.cat(logits)

    def _write_prompts(self, prompts: Sequence[Sequence[int]], cache: TreeCache | PromptPieces) -> Tensor:
        """Run some prompts, in pieces if they are long. Returns logits of shape (n, V)."""
        device, lengths = self.model.inner.device, [len(prompt) for prompt in prompts]
        layout = PromptLayout(
            [self._tree.prompts.prefix_length + n for n in lengths], device, self._tree.prompts.prefix_length
        )
        # Padding stands on the left, so that the last column holds the last token of every prompt.
        padded = [[0] * (layout.width - len(prompt)) + list(prompt) for prompt in prompts]
        tokens, positions = torch.tensor(padded, device=device), layout.positions().clamp(min=0)
        # All verified decoder-only models take this argument; others compute the logits of every position.
        last_only = {"logits_to_keep": 1} if accepts(self.model.inner, "logits_to_keep") else {}
        tree = PromptPass.of(lengths, device, self.cache.prefix)
        pieces = pieces_of(tokens)
        if len(pieces) > 1 and isinstance(cache, PromptPieces):
            tree = replace(tree, pieces=cache)
        for first, end in pieces:
            wait_for_turn(len(prompts) * (end - first))
            ids, places = tokens[:, first:end], positions[:, first:end]
            logits = self.model.forward(ids, places, replace(tree, first=first), cache, **last_only)
        return at_least_float32(logits[:, -1])

    def _packed(self, parents: Tensor, depth: int) -> PackedFrontier | None:
        # Counting the live branches waits for a GPU. At depth 1 parents are ignored.
        packs = parents.is_cpu if self.model.pack_frontiers is None else self.model.pack_frontiers
        return PackedFrontier.of(parents) if packs and depth > 1 else None

    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        num_rows = None if tree.packed is None else len(tree.packed.cells)
        pieces = pieces_of(token_ids, num_rows)
        if len(pieces) == 1:
            return self._columns(token_ids, positions, tree)
        logits = [
            self._columns(token_ids[:, first:end], positions[:, first:end], tree.columns(first, end))
            for first, end in pieces
        ]
        return torch.cat(logits, dim=1)

    def _columns(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        packed = tree.packed
        if packed is None:
            return self._run(token_ids, positions, tree, self.cache)
        token_ids, positions = packed.pack(token_ids), packed.pack(positions)
        return packed.unpack(self._run(token_ids, positions, tree, PackedWrites(self.cache, packed)))

    def _forward_whole_trees(self, tree: WholeTreePass) -> Tensor:
        return self._run(tree.piece.tokens, tree.piece.positions, tree, tree.kept)

    def _run(
        self, token_ids: Tensor, positions: Tensor, tree: BranchPass | WholeTreePass, cache: Cache
    ) -> Tensor:
        return run_pass(ModelPass(self.model, token_ids, positions, tree, cache))


def pieces_of(tokens: Tensor, num_rows: int | None = None) -> list[tuple[int, int]]:
    """Cut the columns of a pass, (Q, B), where it shares the device; None `num_rows`: all cells are computed.

    Returns the first column and the one behind the last of every piece; one piece if nothing is to be cut.
    """
    queries, columns = tokens.shape
    most, num_rows = max_rows(), queries * columns if num_rows is None else num_rows
    if most is None or num_rows <= most:
        return [(0, columns)]
    width = max(1, columns * most // num_rows)
    return [(first, min(first + width, columns)) for first in range(0, columns, width)]


def accepts(model: PreTrainedModel, argument: str) -> bool:
    """Whether the model's forward pass has an argument of this name."""
    return argument in inspect.signature(model.forward).parameters


# Positions of the tokens of a pass, for decoders that would otherwise number them by cache slot. A context
# variable keeps sessions of different threads apart. Shape: (Q, B).
_FRONTIER_POSITIONS: ContextVar[Tensor | None] = ContextVar("genret_frontier_positions", default=None)


class EncoderDecoderSession(TreeSession):
    """Session of an encoder-decoder: `prompts` for the encoder, one decoder prompt for all queries."""

    def __init__(
        self, model: TreeModel, prompts: Sequence[Sequence[int]], decoder_prompt: Sequence[int]
    ) -> None:
        super().__init__(model, PromptLayout([len(decoder_prompt)] * len(prompts), model.inner.device))
        self._cross = DynamicCache()
        self._past = EncoderDecoderCache(self.cache, self._cross)
        self._takes_positions = accepts(model.inner, "decoder_position_ids")
        self.root_logits = self._run_prompts(prompts, decoder_prompt)
        self._count_from_here()

    def _select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> Self:
        other = super()._select(queries, chosen, branches)
        other._cross = DynamicCache()
        layers: list[Any] = self._cross.layers
        for number, layer in enumerate(layers):
            other._cross.update(layer.keys[chosen], layer.values[chosen], number)
        other._past = EncoderDecoderCache(other.cache, other._cross)
        other._encoder_mask = self._encoder_mask[chosen]
        other._encoded = self._encoded[: len(queries)]  # a stand-in: only its shape is asked for
        return other

    @property
    def _cross_bytes(self) -> int:
        return sum(
            part.untyped_storage().nbytes()
            for layer in self._cross.layers
            for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if isinstance(part, Tensor)
        )

    @torch.no_grad()
    def _run_prompts(self, prompts: Sequence[Sequence[int]], decoder_prompt: Sequence[int]) -> Tensor:
        width = max(len(prompt) for prompt in prompts)
        device = self.model.inner.device
        # Encoders count positions from the left edge: padding stands on the right.
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = torch.arange(width, device=device)[None, :] < lengths[:, None]
        encoded: Tensor = self.model.inner.get_encoder()(
            input_ids=torch.tensor(padded, device=device), attention_mask=mask.long(), return_dict=True
        ).last_hidden_state
        self._encoder_mask = mask[:, None, None, :]
        self._encoded = encoded
        start = torch.tensor(decoder_prompt, device=device).expand(len(prompts), -1)
        positions = torch.arange(len(decoder_prompt), device=device).expand(len(prompts), -1)
        # These models compute the logits of every position; here that is one or two.
        tree = PromptPass.of(self._tree.prompts.own_lengths, device)
        logits = self._run_decoder(start, positions, tree, self._past)
        # The cross-attention cache is full. Later passes only need the shape of the encoding, so a view of
        # one zero stands in for it.
        self._encoded = encoded.new_zeros(()).expand(encoded.shape)
        return at_least_float32(logits[:, -1])

    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        with _frontier_at(positions):
            return self._run_decoder(token_ids, positions, tree, self._past)

    def _forward_whole_trees(self, tree: WholeTreePass) -> Tensor:
        past = EncoderDecoderCache(tree.kept, self._cross)
        with _frontier_at(tree.piece.positions):
            return self._run_decoder(tree.piece.tokens, tree.piece.positions, tree, past)

    def _run_decoder(
        self,
        token_ids: Tensor,
        positions: Tensor,
        tree: PromptPass | BranchPass | WholeTreePass,
        past: EncoderDecoderCache,
    ) -> Tensor:
        wait_for_turn(token_ids.numel())
        output = self.model.inner(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._encoder_mask,
            decoder_input_ids=token_ids,
            decoder_attention_mask=self.model.no_mask,
            use_cache=True,
            tree=tree,
            shared_bias=self.model.shared_bias,
            **{self.model.cache_argument: past},
            **({"decoder_position_ids": positions} if self._takes_positions else {}),
        )
        logits: Tensor = output.logits
        return logits


def use_true_positions(embedding: nn.Module) -> None:
    """Make a decoder's position embedding use the pass's positions instead of cache slot numbers. Idempotent.

    BART's decoder numbers positions by slots and takes no `position_ids` from outside. Branches lie side by
    side in the slots, so those numbers are wrong from the second branch on and overrun the table.
    """
    if not getattr(embedding, "takes_frontier_positions", False):
        embedding.register_forward_pre_hook(_replace_positions, with_kwargs=True)
        embedding.register_forward_hook(_shape_as_positions)
        embedding.takes_frontier_positions = True  # type: ignore[assignment]


def _replace_positions(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positions = _FRONTIER_POSITIONS.get()
    # The embedding takes one row of positions for all queries of a batch, and these differ by query.
    return (args, kwargs) if positions is None else (args, {**kwargs, "position_ids": positions.flatten()})


def _shape_as_positions(_: nn.Module, __: tuple[Any, ...], embedded: Tensor) -> Tensor:
    positions = _FRONTIER_POSITIONS.get()
    return embedded if positions is None else embedded.view(*positions.shape, -1)


@contextmanager
def _frontier_at(positions: Tensor) -> Iterator[None]:
    """Set the positions of the tokens of a pass. `positions` shape: (Q, B), int64."""
    token = _FRONTIER_POSITIONS.set(positions)
    try:
        yield
    finally:
        _FRONTIER_POSITIONS.reset(token)
