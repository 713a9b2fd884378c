"""A logit processor for SGLang: titles of genret indexes as the constraint of any request to it.

    GENRET_SGLANG='{"tokenizer": "MODEL", "indexes": {"products": "products.index"}, "reject_token": 0}' \
        python -m sglang.launch_server --model-path MODEL --enable-custom-logit-processor \
        --disable-overlap-schedule

A request names this class by `custom_logit_processor` (`SglangTitleProcessor.to_str()`) and has its arguments
in `custom_params` of its sampling parameters. The modes are those of `title_masks`, without `tap`.

SGLang loads this module itself; without it the module cannot be imported. Whatever a request asks wrongly is
seen only here, where an error would end the engine: its answer is the reject token, and the log says why.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from torch import Tensor

from genret.retrieval.engines.followed_requests import EngineSetup, FollowedRequest, constrain
from genret.retrieval.engines.title_masks import MASK, TAP, TitleArguments
from genret.retrieval.errors import InputError

VARIABLE = "GENRET_SGLANG"
# Requests kept: SGLang does not say when one has ended.
_MOST_KEPT = 4096
# SGLang's `top_k` where there is none.
_ALL_TOKENS = 1 << 30


class SglangTitleProcessor(CustomLogitProcessor):  # type: ignore[misc]
    """The processor. SGLang makes one for every batch, so requests are kept beside them."""

    def __call__(
        self, logits: Tensor, custom_param_list: Sequence[dict[str, Any] | None] | None = None
    ) -> Tensor:
        """Constrain the rows of requests with titles. Shape: (n, V); written in place."""
        setup = _setup(logits.shape[1], logits.device)
        found = (_request(given, setup) for given in custom_param_list or ())
        constrain(logits, [(place, one) for place, one in enumerate(found) if one is not None], setup)
        return logits


@lru_cache
def _setup(vocab_size: int, device: torch.device) -> EngineSetup:
    """Open what the variable names; raises GenretError."""
    given = json.loads(os.environ.get(VARIABLE, "{}"))
    if "tokenizer" not in given or "tap" in given:
        raise InputError(VARIABLE, "must be a JSON object with tokenizer, indexes and reject_token")
    return EngineSetup(given, VARIABLE, given.pop("tokenizer"), vocab_size, device)


@dataclass(slots=True, eq=False)
class _Kept:
    request: FollowedRequest | None  # None: it asks for no titles
    constrained: int = -1  # tokens it had written when its row was constrained last


_KEPT: OrderedDict[str, _Kept] = OrderedDict()


def _request(given: dict[str, Any] | None, setup: EngineSetup) -> FollowedRequest | None:
    """Return the request of a row as far as it has written; None: its row stays as it is."""
    req = (given or {}).get("__req__")
    if given is None or req is None:
        return None
    kept = _KEPT.pop(req.rid, None) or _Kept(_begun(req, given, setup))
    _KEPT[req.rid] = kept
    if len(_KEPT) > _MOST_KEPT:
        _KEPT.popitem(last=False)
    request = kept.request
    if request is not None:
        request.out = list(req.output_ids)
        if len(request.out) <= kept.constrained and request.constraint is not None:
            text = "must be given, and no tokens be drafted: the tokens of a request are hidden"
            setup.log_refusal(InputError("--disable-overlap-schedule", text))
            request.constraint = None
        kept.constrained = len(request.out)
    return request


def _begun(req: Any, given: dict[str, Any], setup: EngineSetup) -> FollowedRequest | None:
    """Return a request that is new here; None: it asks for no titles."""
    prompt, out, sampling = list(req.origin_input_ids), list(req.output_ids), req.sampling_params
    try:
        arguments = TitleArguments.of({name: one for name, one in given.items() if name != "__req__"})
        if arguments is None:
            return None
        if arguments.mode == TAP:
            raise InputError("genret_tap", "is not for SGLang")
        top_k = 0 if sampling.top_k >= _ALL_TOKENS else sampling.top_k
        arguments.check_sampling(sampling.temperature, sampling.top_p, top_k, sampling.min_p)
    except InputError as error:
        setup.log_refusal(error)
        return FollowedRequest(TitleArguments("", MASK), prompt, out, None, None)
    return FollowedRequest.of(arguments, prompt, out, setup)
