"""Logits processors for vLLM: titles of genret indexes as the constraint of any request to it.

    vllm serve MODEL --logprobs-mode processed_logprobs \
        --logits-processors genret.retrieval.engines.vllm_processors:TitleProcessor \
        --additional-config '{"genret": {"indexes": {"products": "products.index"}, "reject_token": 0}}'

The modes are those of `title_masks`. `TitleProcessor` is for the V1 model runner (CPUs, older releases),
`TitleProcessorV2` for Model Runner V2, the default on GPUs. A further mode, `tap`, changes nothing and leaves
the raw logits of a request's next token in a file: the door through which `vllm_engine` decodes.

vLLM loads this module itself; without it the module cannot be imported. What is raised while a batch runs
ends the engine. So a request is refused when it comes, where its arguments alone show that it is wrong, and
otherwise, for an unknown index or filter, by the reject token as its only answer and a line in the log.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2

from genret.decoding.constraints import StaticConstraint
from genret.retrieval.engines.followed_requests import EngineSetup, FollowedRequest, constrain
from genret.retrieval.engines.title_masks import TAP, EngineTitles, TitleArguments, masked_logits
from genret.retrieval.errors import InputError

# Requests kept that left the batch: preempted ones come back, ended ones do not.
_MOST_LEFT = 1024


def check_arguments(params: Any) -> None:
    """Refuse a request whose arguments are wrong, by ValueError; `params` are vLLM's SamplingParams."""
    arguments = TitleArguments.of(params.extra_args)
    if arguments is not None:
        arguments.check_sampling(params.temperature, params.top_p, params.top_k, params.min_p)


def setup_of(vllm_config: Any, device: torch.device) -> EngineSetup:
    """Open what vLLM's `additional_config` has below "genret"; raises GenretError."""
    if vllm_config.speculative_config is not None:
        raise InputError("speculative_config", "must be off: drafted tokens are not checked against titles")
    model = vllm_config.model_config
    given = (vllm_config.additional_config or {}).get("genret") or {}
    where = "additional_config.genret"
    return EngineSetup(given, where, model.tokenizer, model.get_vocab_size(), device)


class TitleProcessor(LogitsProcessor):  # type: ignore[misc]
    """The processor of vLLM's V1 model runner. Name it to vLLM: an entry point's would see no tokens."""

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Refuse a request with wrong arguments; ValueError becomes HTTP status 400."""
        check_arguments(params)

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._setup = setup_of(vllm_config, device)
        self._requests: dict[int, FollowedRequest] = {}
        self._left: OrderedDict[int, FollowedRequest] = OrderedDict()

    def is_argmax_invariant(self) -> bool:
        """No: the likeliest token may be none that is allowed."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests of the batch to their places."""
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._leave(place)
        for place, params, prompt, out in batch_update.added:
            self._leave(place)
            request = self._request(params, prompt or (), out)
            if request is not None:
                self._requests[place] = request
        for a, b, kind in batch_update.moved:
            one, two = self._requests.pop(a, None), self._requests.pop(b, None)
            if one is not None:
                self._requests[b] = one
            if two is not None and kind == MoveDirectionality.SWAP:
                self._requests[a] = two

    def apply(self, logits: Tensor) -> Tensor:
        """Constrain the rows of requests with titles. Shape: (n, V), float32; written in place."""
        requests = sorted(self._requests.items(), key=itemgetter(0))
        if any(request.out and request.out[-1] < 0 for _, request in requests):
            raise RuntimeError(
                "vLLM hides the tokens written from a processor found by an entry point: name this one "
                "by --logits-processors, or the argument logits_processors"
            )
        constrain(logits, requests, self._setup)
        return logits

    def _request(self, params: Any, prompt: Sequence[int], out: list[int]) -> FollowedRequest | None:
        left = self._left.pop(id(out), None)
        if left is not None and left.out is out:  # preempted, and back
            return left
        arguments = TitleArguments.of(params.extra_args)
        if arguments is None:
            return None
        return FollowedRequest.of(arguments, prompt, out, self._setup)

    def _leave(self, place: int) -> None:
        request = self._requests.pop(place, None)
        if request is not None and request.arguments.mode != TAP:
            self._left[id(request.out)] = request
            if len(self._left) > _MOST_LEFT:
                self._left.popitem(last=False)


class TitleProcessorV2(LogitsProcessorV2):  # type: ignore[misc]
    """The processor of vLLM's Model Runner V2: static shapes, and no wait for the device but for `tap`."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with wrong arguments; ValueError becomes HTTP status 400."""
        check_arguments(sampling_params)

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._setup = setup_of(vllm_config, req_states.device)
        self._batch = req_states
        slots, device = req_states.max_num_reqs, req_states.device
        self._state = torch.full((slots,), -1, dtype=torch.int64, device=device)
        self._mode = torch.zeros(slots, dtype=torch.int64, device=device)
        # Tokens written that `_state` has seen, the sum of the logs of valid masses before, the last mass.
        self._depth = torch.zeros(slots, dtype=torch.int64, device=device)
        self._log_x = torch.zeros(slots, dtype=torch.float64, device=device)
        self._pending = torch.zeros(slots, dtype=torch.float64, device=device)
        # On the host, by slot: what its request asks for, and the constraint; None for other requests.
        self._asked: list[TitleArguments | None] = [None] * slots
        self._found: list[tuple[EngineTitles, StaticConstraint] | None] = [None] * slots
        self._staged: list[int] = []

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take a request into a slot; whether it is one with titles."""
        arguments = TitleArguments.of(sampling_params.extra_args)
        self._asked[req_idx], self._found[req_idx] = arguments, None
        if arguments is None:
            return False
        if arguments.mode != TAP:
            self._found[req_idx] = self._setup.constraint(arguments)
            self._staged.append(req_idx)
        return True

    def apply_staged_writes(self) -> None:
        """Put new requests at the beginning of their titles, and resumed ones where they were.

        Of a resumed draw of `disc` the masses before are lost, and so it ends in the reject token.
        """
        for slot in self._staged:
            asked, found = self._asked[slot], self._found[slot]
            self._state[slot] = -1
            if asked is None or found is None:
                continue
            _, constraint = found
            prompt, fed = int(self._batch.prompt_len.np[slot]), int(self._batch.prefill_len.np[slot])
            state = constraint.start(torch.zeros(1, dtype=torch.int64, device=self._state.device))
            for token in self._batch.all_token_ids.gpu[slot, prompt - asked.written : fed].long():
                state = constraint.advance(state, token.view(1))
            self._state[slot] = state[0]
            self._mode[slot] = asked.mode
            self._depth[slot] = fed - prompt
            self._log_x[slot] = -math.inf if fed > prompt else 0.0
            self._pending[slot] = 0.0
        self._staged.clear()

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Constrain the rows of requests with titles. Shape: (n, V), float32; written in place."""
        numbers = ctx.idx_mapping_np.tolist()
        by_constraint: dict[int, list[int]] = {}
        for row, slot in enumerate(numbers):
            asked, found = self._asked[slot], self._found[slot]
            if asked is not None and asked.mode == TAP:
                length = int(self._batch.prompt_len.np[slot])
                prompt = self._batch.all_token_ids.gpu[slot, :length].tolist()
                self._setup.leave(asked.tap_key, prompt, logits[row])
            elif found is not None:
                by_constraint.setdefault(id(found[1]), []).append(row)
            elif asked is not None:
                self._setup.refuse(logits[row])
        for rows in by_constraint.values():
            self._constrain(logits, ctx, rows, numbers)
        return logits

    def _constrain(self, logits: Tensor, ctx: Any, places: list[int], numbers: list[int]) -> None:
        slots_on_host = [numbers[place] for place in places]
        found = self._found[slots_on_host[0]]
        assert found is not None  # grouped by it
        titles, constraint = found
        device = logits.device
        rows = torch.tensor(places).to(device, non_blocking=True)
        slots = torch.tensor(slots_on_host).to(device, non_blocking=True)
        written = ctx.pos[rows].long() + 1 - self._batch.prompt_len.gpu[slots].long()
        grows = written == self._depth[slots] + 1
        following = constraint.advance(self._state[slots], ctx.input_ids[rows].long())
        state = torch.where(grows, following, self._state[slots])
        log_x = self._log_x[slots] + torch.where(grows, self._pending[slots], 0.0)
        masked, log_mass = masked_logits(
            logits[rows],
            constraint,
            state,
            self._mode[slots],
            log_x,
            self._width(titles, ctx, places, slots_on_host),
            self._setup.reject,
        )
        logits[rows] = masked
        self._state[slots], self._log_x[slots], self._pending[slots] = state, log_x, log_mass
        self._depth[slots] = torch.where(grows, written, self._depth[slots])

    def _width(self, titles: EngineTitles, ctx: Any, places: list[int], slots: list[int]) -> int:
        """Return a bound on the children of these rows, from the tokens that the host knows to be written."""
        prompts = self._batch.prompt_len.np[slots]
        least = int((ctx.seq_lens_upper_bound_np[places] - prompts).min())
        return titles.width(max(least, 0))
