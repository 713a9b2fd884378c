"""Checkpoints that would run code: refused, unless the code was asked for."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.dynamic_module_utils
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.errors import ModelLoadError
from decoding.model.hf_model import HFLanguageModel


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).eval().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once a checkpoint's own code has run."""
    modules = tmp_path / "modules"
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(str(modules))
    return tmp_path / "code-ran"


def with_own_code(checkpoint: Path, trace: Path, model_type: str) -> None:
    code = f"""
from pathlib import Path
Path({str(trace)!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = {model_type!r}
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
    (checkpoint / "own_code.py").write_text(code)
    change_config(
        checkpoint,
        model_type=model_type,
        auto_map={"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"},
    )


def change_config(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_code_of_a_checkpoint_does_not_run_unless_asked_for(checkpoint: Path, trace: Path) -> None:
    with_own_code(checkpoint, trace, "own-architecture")
    with pytest.raises(ModelLoadError, match=r"no model configuration at .*custom code"):
        HFLanguageModel.load(checkpoint, device="cpu")
    assert not trace.exists()


def test_code_beside_a_known_architecture_is_left_alone(checkpoint: Path, trace: Path) -> None:
    with_own_code(checkpoint, trace, "llama")
    HFLanguageModel.load(checkpoint, device="cpu")
    assert not trace.exists()


def test_code_runs_where_it_was_asked_for(checkpoint: Path, trace: Path) -> None:
    with_own_code(checkpoint, trace, "own-architecture")
    loaded = HFLanguageModel.load(checkpoint, device="cpu", trust_remote_code=True)
    assert loaded.prefill([[3, 4, 5]]).root_logits.shape == (1, 40)
    assert trace.exists()


class Bomb:
    """Unpickled without limits, it leaves its trace."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


def no_unpickling(*args: object, **options: object) -> None:
    raise AssertionError("torch.load was called")


@pytest.mark.parametrize(
    "shard",
    ["weights.bin", "pytorch_model.bin", "../outside.safetensors", "/etc/passwd", "", "..", ".safetensors/x"],
)
def test_a_list_of_shards_names_safetensors_of_its_directory_only(
    checkpoint: Path, trace: Path, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", no_unpickling)
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").rename(checkpoint / "first.safetensors")
    if shard.endswith("bin"):
        (checkpoint / shard).write_bytes(pickle.dumps({name: Bomb(trace) for name in weights}))
    write_shard_list(checkpoint, {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)})
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json names '"):
        HFLanguageModel.load(checkpoint, device="cpu")
    assert not trace.exists()


def write_shard_list(checkpoint: Path, content: object) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "content", [[], {}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {"a": ["b"]}}]
)
def test_a_list_of_shards_of_another_shape_is_refused(checkpoint: Path, content: object) -> None:
    write_shard_list(checkpoint, content)
    with pytest.raises(ModelLoadError, match="is no list of shards"):
        HFLanguageModel.load(checkpoint, device="cpu")


def test_real_shards_are_loaded(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, checkpoint / file, metadata={"format": "pt"})
    shard_of = {name: file for file, part in parts.items() for name in part}
    write_shard_list(checkpoint, {"metadata": {"total_size": 1}, "weight_map": shard_of})
    HFLanguageModel.load(checkpoint, device="cpu")


def test_an_adapter_is_no_model(checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/elses"}')
    with pytest.raises(ModelLoadError, match="holds an adapter"):
        HFLanguageModel.load(checkpoint, device="cpu")


@pytest.mark.parametrize("name", ["adapter_model.bin", "weights.bin", 3])
def test_a_configuration_names_safetensors_only(
    checkpoint: Path, name: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", no_unpickling)
    change_config(checkpoint, transformers_weights=name)
    with pytest.raises(ModelLoadError, match="as the weights, which are no safetensors"):
        HFLanguageModel.load(checkpoint, device="cpu")
