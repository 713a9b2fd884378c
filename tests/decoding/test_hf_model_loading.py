"""Loading checkpoints: types, devices, foreign files and code, quantised weights, and broken ones."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.dynamic_module_utils
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from genret.decoding.errors import ModelLoadError, UnsupportedModelError
from genret.decoding.model import model_loading
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.model_loading import load_pretrained
from genret.retrieval.errors import ModelError
from genret.retrieval.training.training_run import load_model
from tests.tiny_gguf import logits
from tests.tiny_transformers import build

VOCAB = 40
SHARD_LIST = "model.safetensors.index.json"


def llama() -> PreTrainedModel:
    return build("llama", VOCAB)


def refused(place: str | Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        HFLanguageModel.load(place, device="cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    llama().save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_model_answers_as_before(checkpoint: Path) -> None:
    loaded = HFLanguageModel.load(checkpoint, device="cpu")
    expected = HFLanguageModel(llama()).prefill([[3, 4, 5]])
    torch.testing.assert_close(loaded.prefill([[3, 4, 5]]).root_logits, expected.root_logits)
    assert loaded.dtype == torch.float32
    assert loaded.device == torch.device("cpu")


def test_an_encoder_decoder_is_recognised(tmp_path: Path) -> None:
    build("bart", VOCAB).save_pretrained(tmp_path)
    loaded = HFLanguageModel.load(str(tmp_path), device="cpu")
    assert loaded.decoder_prompt == (2,)
    assert loaded.prefill([[3, 4]]).root_logits.shape == (1, VOCAB)


def test_small_float16_checkpoints_are_computed_in_float32(tmp_path: Path) -> None:
    llama().half().save_pretrained(tmp_path)
    assert HFLanguageModel.load(tmp_path, device="cpu").dtype == torch.float32


@pytest.mark.parametrize(("hardware", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_large_models_take_bfloat16_where_the_processor_has_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, hardware: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(model_loading, "SMALL_MODEL_PARAMETERS", 1)
    for feature in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, feature, lambda: hardware)
    assert HFLanguageModel.load(checkpoint, device="cpu").dtype == dtype


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_a_type_may_be_asked_for(checkpoint: Path, name: str) -> None:
    model = HFLanguageModel.load(checkpoint, device="cpu", dtype=name)
    assert model.dtype == model_loading.DTYPES[name]
    assert model.prefill([[3]]).root_logits.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "float16 is not computed on a CPU"),
        ({"dtype": "int8"}, "dtype must be 'auto' or one of"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
    ],
)
def test_wrong_types_and_devices(checkpoint: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        HFLanguageModel.load(checkpoint, **{"device": "cpu", **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is present")
def test_cuda_that_is_not_there(checkpoint: Path) -> None:
    with pytest.raises(ModelLoadError, match="no CUDA device"):
        HFLanguageModel.load(checkpoint, device="cuda")


def test_number_of_threads(checkpoint: Path) -> None:
    before = torch.get_num_threads()
    try:
        HFLanguageModel.load(checkpoint, device="cpu", num_threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ValueError, match="num_threads must be >= 1"):
        HFLanguageModel.load(checkpoint, device="cpu", num_threads=0)


def test_other_weights_than_safetensors_are_refused(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    loaded = load_file(weights)
    weights.unlink()
    refused(checkpoint, r"holds no \*\.safetensors")
    torch.save(loaded, checkpoint / "pytorch_model.bin")
    refused(checkpoint, r"only pickled weights \(pytorch_model\.bin\)")


def test_no_model_directory(tmp_path: Path) -> None:
    refused(tmp_path, r"holds no config\.json")
    file = tmp_path / "weights.safetensors"
    file.touch()
    refused(file, "is a file")


@pytest.mark.parametrize("place", [Path("absent"), "/absent/model", "../absent", "a/b/c"])
def test_no_such_directory(place: str | Path) -> None:
    refused(place, "no such model directory")


def test_a_name_in_a_directory_that_is_here_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    asked: list[str] = []

    def refuse(name: str, **_: object) -> None:
        asked.append(name)
        raise OSError("the hub was asked")

    monkeypatch.setattr(model_loading.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(ModelLoadError, match="no such model directory: models/mistyped"):
        HFLanguageModel.load("models/mistyped", device="cpu")
    for hub_id in ("owner/name", "name"):
        refused(hub_id, "the hub was asked")
    assert asked == ["owner/name", "name"]


def test_missing_weights_are_not_invented(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    refused(checkpoint, r"1 missing keys \(model\.layers\.1\.mlp\.up_proj\.weight\)")


def test_weights_of_another_shape(checkpoint: Path) -> None:
    change_config(checkpoint, intermediate_size=32)
    refused(checkpoint, "llama")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", "", "cannot load 'llama' weights"),
        ("model.safetensors", "not safetensors at all", "cannot load 'llama' weights"),
        ("config.json", "{", "no model configuration"),
        ("config.json", '{"model_type": "no_such_model"}', "no model configuration"),
        ("config.json", "[]", "no model configuration"),
        ("adapter_config.json", '{"base_model_name_or_path": "somebody/elses"}', "holds an adapter"),
        (SHARD_LIST, "[]", "is no list of shards"),
        (SHARD_LIST, "{}", "is no list of shards"),
        (SHARD_LIST, '{"weight_map": []}', "is no list of shards"),
        (SHARD_LIST, '{"weight_map": {"a": 1}}', "is no list of shards"),
        (SHARD_LIST, '{"weight_map": {"a": ["b"]}}', "is no list of shards"),
    ],
)
def test_broken_files_are_named(checkpoint: Path, file: str, content: str, message: str) -> None:
    (checkpoint / file).write_text(content)
    refused(checkpoint, message)


def test_a_refused_architecture_is_named_before_its_weights_are_read(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UnsupportedModelError, match="mamba"):
        HFLanguageModel.load(checkpoint, device="cpu")


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
    refused(checkpoint, r"no model configuration at .*custom code")
    assert not trace.exists()


@pytest.mark.parametrize(("model_type", "asked_for"), [("llama", False), ("own-architecture", True)])
def test_code_beside_a_known_architecture_is_left_alone_and_runs_where_it_was_asked_for(
    checkpoint: Path, trace: Path, model_type: str, asked_for: bool
) -> None:
    with_own_code(checkpoint, trace, model_type)
    loaded = HFLanguageModel.load(checkpoint, device="cpu", trust_remote_code=asked_for)
    assert loaded.prefill([[3, 4, 5]]).root_logits.shape == (1, VOCAB)
    assert trace.exists() == asked_for


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
    refused(checkpoint, r"model\.safetensors\.index\.json names '")
    assert not trace.exists()


def write_shard_list(checkpoint: Path, content: object) -> None:
    (checkpoint / SHARD_LIST).write_text(json.dumps(content))


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


@pytest.mark.parametrize("name", ["adapter_model.bin", "weights.bin", 3])
def test_a_configuration_names_safetensors_only(
    checkpoint: Path, name: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", no_unpickling)
    change_config(checkpoint, transformers_weights=name)
    refused(checkpoint, "as the weights, which are no safetensors")


_BLOCKS: dict[str, Any] = {"bits": 4, "group_size": 32}
PACKAGES = {
    "bitsandbytes": ({"load_in_4bit": True}, "bitsandbytes"),
    "gptq": (_BLOCKS, "optimum"),
    "awq": ({**_BLOCKS, "zero_point": True, "version": "gemm"}, "gptqmodel"),
    "compressed-tensors": ({"format": "pack-quantized", "config_groups": {}}, "compressed_tensors"),
    "torchao": ({"quant_type": "int8_weight_only"}, "torchao"),
}


def quantised_by(folder: Path, method: str, **fields: Any) -> Path:
    build("llama", 256).save_pretrained(folder)
    change_config(folder, quantization_config={"quant_method": method, **fields})
    return folder


@pytest.mark.parametrize("method", PACKAGES)
def test_a_missing_package_is_named(tmp_path: Path, method: str) -> None:
    fields, package = PACKAGES[method]
    if find_spec(package) is not None:
        pytest.skip(f"the package {package} is installed")
    with pytest.raises(ModelLoadError, match=f"quantised by '{method}'") as caught:
        HFLanguageModel.load(quantised_by(tmp_path, method, **fields), device="cpu")
    said = str(caught.value).partition(str(tmp_path))[2]
    assert package.replace("_", "-") in said
    assert "\n" not in said


def test_a_method_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"quantised by 'exotic', which transformers does not read.*awq"):
        HFLanguageModel.load(quantised_by(tmp_path, "exotic"), device="cpu")


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_is_read_and_decoded_with(tmp_path: Path, bits: int) -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    # Blocks are 64 weights wide.
    wide = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(wide).save_pretrained(tmp_path / "plain")
    config = BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=torch.float32
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(
            tmp_path / "plain", quantization_config=config, device_map={"": "cpu"}, dtype=torch.float32
        )
        theirs.save_pretrained(tmp_path / "blocks")
        ours = load_pretrained(tmp_path / "blocks", "cpu", "auto", False, None)
        torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=1e-5)
        model = HFLanguageModel.load(tmp_path / "blocks", device="cpu", dtype="float32")
        session = model.prefill([[5, 6, 7]])
        expected = theirs(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
        torch.testing.assert_close(session.root_logits[0], expected, rtol=0, atol=1e-4)
        with pytest.raises(ModelLoadError, match="cannot be merged into weights quantised by 'bitsandbytes'"):
            load_pretrained(tmp_path / "blocks", "cpu", "auto", False, None, tmp_path / "adapter")
        with pytest.raises(ModelError, match="quantised weights are not trained"):
            load_model(str(tmp_path / "blocks"))
