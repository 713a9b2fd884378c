"""The parts of vLLM that logits processors meet, for tests without it, and a server of its API.

`install` puts the modules in place. `V1Batch` and `V2Batch` call a processor as the two model runners do.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from genret.retrieval.engines.title_masks import TAP_KEY, TitleArguments, tap_path


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Any, list[int], list[int]]] = ()
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


# Arguments of requests for the indexes "titles" and "same".
EXTRA: list[dict[str, Any] | None] = [
    {"genret": "titles"},
    {"genret": "titles", "genret_mode": "disc"},
    {"genret": "titles", "genret_mode": "sink", "genret_filter": "kind = 'work'"},
    {"genret": "same", "genret_mode": "disc", "genret_filter": "kind != 'work'"},
    {"genret": "titles", "genret_mode": "disc", "genret_allow": ["Q4", "Q5", "Q8"], "genret_deny": ["Q4"]},
    {"genret": "titles", "genret_mode": "sink"},
    None,
    {"genret": "nowhere"},
]


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put the modules in place and return `vllm_processors`, imported with them."""
    v1 = ModuleType("vllm.v1.sample.logits_processor")
    v1.__dict__.update(
        BatchUpdate=BatchUpdate, MoveDirectionality=MoveDirectionality, LogitsProcessor=type("V1", (), {})
    )
    v2 = ModuleType("vllm.v1.worker.gpu.sample.logits_processor.interface")
    v2.__dict__.update(LogitsProcessor=type("V2", (), {}))
    for module in (v1, v2):
        parts = module.__name__.split(".")
        for length in range(1, len(parts)):
            parent = ".".join(parts[:length])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "genret.retrieval.engines.vllm_processors", raising=False)
    import genret.retrieval.engines.vllm_processors as processors

    return processors


def config(genret: dict[str, Any] | None, tokenizer: Path, vocab_size: int) -> Any:
    """The part of vLLM's configuration that processors read."""
    model = SimpleNamespace(tokenizer=str(tokenizer), get_vocab_size=lambda: vocab_size)
    additional = {} if genret is None else {"genret": genret}
    return SimpleNamespace(model_config=model, additional_config=additional, speculative_config=None)


def sampling(extra: dict[str, Any] | None, temperature: float = 1.0) -> Any:
    """SamplingParams of a request."""
    return SimpleNamespace(extra_args=extra, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)


@dataclass
class V1Batch:
    """Drives a processor as the V1 runner does: requests keep places, which may be swapped and given up."""

    processor: Any
    outs: list[list[int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # place of every request

    def add(self, extra: Sequence[dict[str, Any] | None], prompts: Sequence[list[int]]) -> None:
        self.prompts, self.params = list(prompts), [sampling(one) for one in extra]
        self.outs = [[] for _ in extra]
        self.places = list(range(len(extra)))
        added = [(n, self.params[n], prompts[n], self.outs[n]) for n in self.places]
        self.processor.update_state(BatchUpdate(len(extra), added=added))

    def swap(self, one: int, two: int) -> None:
        a, b = self.places[one], self.places[two]
        moved = [(a, b, MoveDirectionality.SWAP)]
        self.processor.update_state(BatchUpdate(len(self.places), moved=moved))
        self.places[one], self.places[two] = b, a

    def preempt(self, one: int) -> None:
        """Take a request out, and let it come back at the same place."""
        place = self.places[one]
        self.processor.update_state(BatchUpdate(len(self.places), removed=[place]))
        added = [(place, self.params[one], self.prompts[one], self.outs[one])]
        self.processor.update_state(BatchUpdate(len(self.places), added=added))

    def apply(self, logits: Tensor) -> Tensor:
        """Logits by request, (n, V)."""
        rows = torch.empty_like(logits)
        rows[torch.tensor(self.places)] = logits
        return self.processor.apply(rows)[torch.tensor(self.places)]


class V2Batch:
    """Drives a processor as Model Runner V2 does: slots on the device, rows in any order."""

    def __init__(self, processors: ModuleType, setup: Any, num_requests: int, vocab_size: int) -> None:
        both = lambda: SimpleNamespace(  # noqa: E731
            gpu=torch.zeros(num_requests, dtype=torch.int64), np=np.zeros(num_requests, dtype=np.int64)
        )
        self.state = SimpleNamespace(
            device=torch.device("cpu"),
            max_num_reqs=num_requests,
            vocab_size=vocab_size,
            prompt_len=both(),
            prefill_len=both(),
            all_token_ids=SimpleNamespace(gpu=torch.zeros(num_requests, 128, dtype=torch.int32)),
        )
        self.processor = processors.TitleProcessorV2(setup, self.state)

    def add(self, extra: Sequence[dict[str, Any] | None], prompts: Sequence[list[int]]) -> None:
        self.prompts, self.params = list(prompts), [sampling(one) for one in extra]
        self.outs: list[list[int]] = [[] for _ in extra]
        for slot in range(len(extra)):
            self._fill(slot)
        self.processor.apply_staged_writes()

    def preempt(self, slot: int) -> None:
        self._fill(slot)
        self.processor.apply_staged_writes()

    def _fill(self, slot: int) -> None:
        tokens = self.prompts[slot] + self.outs[slot]
        for column, length in (("prompt_len", len(self.prompts[slot])), ("prefill_len", len(tokens))):
            getattr(self.state, column).gpu[slot] = length
            getattr(self.state, column).np[slot] = length
        self.state.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.processor.add_request(slot, self.params[slot])

    def apply(self, logits: Tensor, order: list[int]) -> Tensor:
        """Logits by request, (n, V), with the rows of the batch in the order given."""
        tokens = [self.prompts[slot] + self.outs[slot] for slot in order]
        lengths = np.array([len(row) for row in tokens])
        context = SimpleNamespace(
            idx_mapping_np=np.array(order),
            input_ids=torch.tensor([row[-1] for row in tokens]),
            pos=torch.from_numpy(lengths - 1),
            seq_lens_upper_bound_np=lengths,
        )
        back = torch.empty_like(logits)
        back[torch.tensor(order)] = self.processor.apply(logits[torch.tensor(order)], context)
        return back


NextLogits = Callable[[Sequence[tuple[int, ...]]], Tensor]


@contextmanager
def server(next_logits: NextLogits, tap: Path | None, max_model_len: int, port: int = 0) -> Iterator[int]:
    """Serve /v1/models and /v1/completions as `vllm serve` with our processor does; yields the port."""

    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "served", "max_model_len": max_model_len}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            arguments = TitleArguments.of(body["vllm_xargs"])
            prompts = [tuple(prompt) for prompt in body["prompt"]]
            if arguments is None or body["max_tokens"] != 1:
                self._send(400, {"error": "not a tap"})
                return
            if tap is not None:
                for prompt, row in zip(prompts, next_logits(prompts), strict=True):
                    row.float().numpy().tofile(tap_path(tap, body["vllm_xargs"][TAP_KEY], prompt))
            self._send(200, {"choices": [{"text": ""} for _ in prompts]})

        def _send(self, status: int, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    listening = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield listening.server_address[1]
    finally:
        listening.shutdown()
        for connection in connections:  # as a process that ends does
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        listening.server_close()
        thread.join()
