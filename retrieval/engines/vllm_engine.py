"""Decodes through vLLM: an engine in a process of its own, or a server that runs.

Decoders need the logits behind every branch, and vLLM says the log-probabilities of few tokens. Our
processor in it (`vllm_processors`, mode `tap`) leaves them in a folder in memory that both sides see, a file
per sequence. A step is one call of the engine: a sequence per branch, and one token to be written. So all
methods, seeds and certificates are as exact as the engine's logits.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from genret.decoding.errors import EngineError
from genret.decoding.sequence_model import SequenceModel
from genret.retrieval.checkpoints import find_checkpoint
from genret.retrieval.engines.title_masks import TAP_KEY, tap_path
from genret.retrieval.errors import InputError, MissingExtraError, ModelError

PROCESSOR = "genret.retrieval.engines.vllm_processors:TitleProcessor"
TAP_VARIABLE = "GENRET_TAP"
_MEMORY = Path("/dev/shm")
_TIMEOUT_SECONDS = 600.0


def open_engine(
    engine: str, place: str | Path, dtype: str = "auto", options: Mapping[str, Any] | None = None
) -> SequenceModel:
    """Return a model that decodes through an engine.

    Args:
        engine: "vllm" for an engine of this process, or the address of a running vLLM server with our
            processor, such as "http://localhost:8000/v1".
        place: Checkpoint of the model: what the engine loads, and what the server has loaded.
        dtype: Type of weights for "vllm", as vLLM names them.
        options: Further arguments of `vllm.LLM`, for "vllm".

    Raises:
        InputError: the engine is unknown, or an option is.
        MissingExtraError: vLLM is not installed.
        ModelError: the engine cannot load the model, or the server is not one that can be used.
    """
    if engine == "vllm":
        return SequenceModel(LocalVllm(place, dtype, options or {}))
    if str(engine).startswith(("http://", "https://")):
        if options:
            raise InputError("engine_options", "are for engine 'vllm': a server has its own")
        return SequenceModel(VllmServer(engine))
    raise InputError(
        "engine", f"must be 'vllm' or the address of a vLLM server (http://…/v1), got {engine!r}"
    )


class _TappedEngine:
    """An engine whose processor leaves logits in a folder (a `SequenceEngine`)."""

    device = torch.device("cpu")  # where the logits are read

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def next_logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return the next-token logits after every sequence; see `SequenceEngine.next_logits`."""
        key = secrets.token_hex(16)
        places = {sequence: place for place, sequence in enumerate(dict.fromkeys(sequences))}
        self._run(key, list(places))
        paths = [tap_path(self.folder, key, sequence) for sequence in places]
        try:
            found = torch.from_numpy(np.stack([np.fromfile(path, dtype=np.float32) for path in paths]))
        except FileNotFoundError:
            raise EngineError(self._without_logits()) from None
        for path in paths:
            path.unlink()
        if len(places) == len(sequences):
            return found
        return found[[places[sequence] for sequence in sequences]]

    def _run(self, key: str, sequences: list[tuple[int, ...]]) -> None:
        """Let the engine write a token behind different sequences, and the processor leave their logits."""
        raise NotImplementedError

    def _without_logits(self) -> str:
        """Return what is wrong if it left none."""
        return f"vLLM left no logits in {self.folder}"


class LocalVllm(_TappedEngine):
    """An engine of vLLM in a process of its own, started and ended by this one.

    The process is spawned, so a script that opens one needs `if __name__ == "__main__":`, as vLLM itself
    does. Arguments are those of `open_engine`.
    """

    def __init__(self, place: str | Path, dtype: str, options: Mapping[str, Any]) -> None:
        found = find_checkpoint(place)
        if found.adapter is not None:
            raise InputError("model", f"{place}: vLLM loads whole checkpoints: merge the adapter first")
        # Threads and compiled loops do not survive a fork; vLLM stops where numba was imported before it.
        os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        try:
            import vllm
        except ImportError:
            raise MissingExtraError("vllm", "vllm") from None
        memory = _MEMORY if _MEMORY.is_dir() else None
        super().__init__(Path(tempfile.mkdtemp(prefix="genret-tap-", dir=memory)))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._engine = vllm.LLM(
                model=str(found.weights),
                dtype=dtype,
                skip_tokenizer_init=True,
                enable_prefix_caching=True,
                disable_log_stats=True,
                logits_processors=[PROCESSOR],
                additional_config={"genret": {"tap": str(self.folder)}},
                **options,
            )
        except Exception as error:
            raise ModelError(f"vLLM cannot load {place}: {error}") from error
        config = self._engine.llm_engine.model_config
        self.vocab_size: int = config.get_vocab_size()
        self.max_positions: int = config.max_model_len - 1  # one token is always written behind

    def _run(self, key: str, sequences: list[tuple[int, ...]]) -> None:
        import vllm

        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=1, detokenize=False, extra_args={TAP_KEY: key}
        )
        prompts = [{"prompt_token_ids": list(sequence)} for sequence in sequences]
        try:
            self._engine.generate(prompts, params, use_tqdm=False)
        except Exception as error:
            raise EngineError(f"vLLM failed: {error}") from error


class VllmServer(_TappedEngine):
    """A running server of vLLM on this machine, with our processor and a folder for `tap`.

    `address`: its API, such as "http://localhost:8000/v1"; ModelError if it is not there, or without our
    processor.
    """

    def __init__(self, address: str) -> None:
        super().__init__(Path(os.environ.get(TAP_VARIABLE) or _MEMORY / "genret-tap"))
        parts = urlsplit(address)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = make(parts.netloc, timeout=_TIMEOUT_SECONDS)
        weakref.finalize(self, self._connection.close)
        self._address, self._base = address, parts.path.rstrip("/")
        try:
            (model, *_) = self._ask("GET", "/models")["data"]
            self._model: str = model["id"]
            self.max_positions: int = model["max_model_len"] - 1
            self.vocab_size: int = self.next_logits([(0,)]).shape[1]
        except EngineError as error:
            raise ModelError(str(error)) from error

    def _run(self, key: str, sequences: list[tuple[int, ...]]) -> None:
        asked = {"model": self._model, "prompt": sequences, "max_tokens": 1, "temperature": 0}
        self._ask("POST", "/completions", {**asked, "vllm_xargs": {TAP_KEY: key}})

    def _without_logits(self) -> str:
        return (
            f"{self._address}: no logits came to {self.folder}: the server must run on this machine "
            f"with --logits-processors {PROCESSOR} --additional-config "
            f'\'{{"genret": {{"tap": "{self.folder}"}}}}\' (or another folder, in {TAP_VARIABLE})'
        )

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return its reply; over a new connection where the server closed the last one."""
        sent = None if body is None else json.dumps(body)
        for attempt in (1, 2):
            try:
                self._connection.request(
                    method, self._base + path, sent, {"Content-Type": "application/json"}
                )
                reply = self._connection.getresponse()
                text = reply.read()
                break
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if attempt == 2:
                    raise EngineError(f"{self._address}: the engine cannot be reached: {error}") from error
        if reply.status != 200:
            raise EngineError(
                f"{self._address}: status {reply.status}: {text[:300].decode(errors='replace')}"
            )
        try:
            return json.loads(text)
        except ValueError:
            raise EngineError(f"{self._address}: expected JSON, got {text[:80]!r}") from None
