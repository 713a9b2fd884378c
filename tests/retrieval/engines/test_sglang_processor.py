"""The processor for SGLang, driven as its sampler does, beside the one for vLLM's V1 runner."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from genret.retrieval.errors import InputError
from genret.retrieval.index.reader import Index
from tests import fake_vllm

REJECT = 0  # the padding token
MODULE = "genret.retrieval.engines.sglang_processor"
INSTALLED = importlib.util.find_spec("sglang") is not None


@pytest.fixture
def settings(index: Path, checkpoint: Path) -> dict[str, Any]:
    indexes = {"titles": str(index), "same": str(index)}
    return {"tokenizer": str(checkpoint), "indexes": indexes, "reject_token": REJECT}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> Iterator[ModuleType]:
    """The processor's module, over the real base class where SGLang is installed, else over a stand-in."""
    base = "sglang.srt.sampling.custom_logit_processor"
    parts = base.split(".")
    if not INSTALLED:
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[base].__dict__["CustomLogitProcessor"] = type("CustomLogitProcessor", (), {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setenv("GENRET_SGLANG", json.dumps(settings))
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


class Batch:
    """Calls the processor as SGLang's sampler does: a new object every time, and rows in any order."""

    def __init__(
        self, module: ModuleType, extra: list[dict[str, Any] | None], prompts: list[list[int]]
    ) -> None:
        self._module = module
        self.reqs = [
            SimpleNamespace(
                rid=f"request {number}",
                origin_input_ids=prompt,
                output_ids=[],
                sampling_params=SimpleNamespace(temperature=1.0, top_p=1.0, top_k=1 << 30, min_p=0.0),
            )
            for number, prompt in enumerate(prompts)
        ]
        self._params = [
            None if asked is None else {**asked, "__req__": req}
            for asked, req in zip(extra, self.reqs, strict=True)
        ]

    def apply(self, logits: Tensor, order: list[int]) -> Tensor:
        """Logits by request, (n, V), with the rows in the order given."""
        back = torch.empty_like(logits)
        rows = torch.tensor(order)
        processor = self._module.SglangTitleProcessor()
        back[rows] = processor(logits[rows], [self._params[number] for number in order])
        return back


@pytest.mark.parametrize("seed", range(6))
def test_it_writes_the_logits_of_the_processor_for_vllm(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    settings: dict[str, Any],
    index: Path,
    checkpoint: Path,
    seed: int,
) -> None:
    """Random walks of all modes, filters included; requests leave the batch for a step and come back."""
    rng = random.Random(seed)
    opened = Index.open(index)
    extra = [rng.choice([*fake_vllm.EXTRA, {"thinking_budget": 3}]) for _ in range(8)]
    prompts = [[rng.randrange(5, opened.vocab_size) for _ in range(rng.randint(1, 6))] for _ in extra]
    batch = Batch(module, extra, prompts)
    of_vllm = fake_vllm.install(monkeypatch)
    given = {name: one for name, one in settings.items() if name != "tokenizer"}
    setup = fake_vllm.config(given, checkpoint, opened.vocab_size)
    peer = fake_vllm.V1Batch(of_vllm.TitleProcessor(setup, torch.device("cpu"), False))
    peer.add([None if asked == {"thinking_budget": 3} else asked for asked in extra], prompts)
    ended: set[int] = set()
    for _ in range(14):
        logits = torch.randn(len(extra), opened.vocab_size) * 3
        order = rng.sample(range(len(extra)), len(extra))
        one, two = batch.apply(logits.clone(), order), peer.apply(logits.clone())
        for number, req in enumerate(batch.reqs):
            if number not in ended:
                assert torch.equal(one[number], two[number]), (number, extra[number])
            token = int(torch.multinomial(torch.softmax(two[number].double(), 0), 1))
            req.output_ids.append(token)
            peer.outs[number].append(token)
            if token in (opened.end_token_id, REJECT):
                ended.add(number)
    assert ended


def test_hidden_tokens_end_in_the_reject_token(
    module: ModuleType, index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under overlapped scheduling a row comes again before its last token is known."""
    batch = Batch(module, [{"genret": "titles"}, None], [[5], [6]])
    logits = torch.zeros(2, Index.open(index).vocab_size)
    assert batch.apply(logits.clone(), [0, 1])[0, REJECT] == -math.inf
    with caplog.at_level(logging.WARNING):
        found = batch.apply(logits.clone(), [1, 0])
    assert found[0].isfinite().nonzero().flatten().tolist() == [REJECT]
    assert torch.equal(found[1], logits[1])
    assert "--disable-overlap-schedule: must be given" in caplog.text


@pytest.mark.parametrize(
    ("asked", "sampling", "told"),
    [
        ({"genret": "titles", "genret_mode": "disc"}, {"temperature": 0.5}, "disc needs temperature 1"),
        ({"genret": "titles", "genret_mode": "sink"}, {"top_k": 5}, "sink needs temperature 1"),
        ({"genret": "titles", "genret_beams": 3}, {}, "genret_beams: unknown argument"),
        ({"genret_tap": "0a" * 16}, {}, "genret_tap: is not for SGLang"),
        ({"genret": "titles", "genret_filter": "size > 3"}, {}, "size"),
    ],
)
def test_wrong_requests_end_in_the_reject_token(
    module: ModuleType,
    index: Path,
    caplog: pytest.LogCaptureFixture,
    asked: dict[str, Any],
    sampling: dict[str, float],
    told: str,
) -> None:
    batch = Batch(module, [asked], [[5]])
    vars(batch.reqs[0].sampling_params).update(sampling)
    with caplog.at_level(logging.WARNING):
        found = batch.apply(torch.zeros(1, Index.open(index).vocab_size), [0])
    assert found[0].isfinite().nonzero().flatten().tolist() == [REJECT]
    assert told in caplog.text


def test_the_settings_must_be_there(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENRET_SGLANG")
    with pytest.raises(InputError, match="GENRET_SGLANG: must be a JSON object with tokenizer"):
        module.SglangTitleProcessor()(torch.zeros(1, 8), [None])


def test_it_passes_through_sglang_itself(module: ModuleType) -> None:
    """As a request carries it to a server."""
    if not INSTALLED:
        pytest.skip("SGLang is not installed: what it needs is for CUDA alone")
    text = module.SglangTitleProcessor.to_str()
    assert isinstance(module.CustomLogitProcessor.from_str(text), module.SglangTitleProcessor)
