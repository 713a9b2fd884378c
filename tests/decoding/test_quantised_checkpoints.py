"""Folders with quantised weights: read where their package is installed, else refused by its name."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from decoding.errors import ModelLoadError
from decoding.model.hf_model import HFLanguageModel
from decoding.model.model_loading import load_pretrained
from retrieval.errors import ModelError
from retrieval.training.training_run import load_model
from tests.tiny_gguf import logits
from tests.tiny_transformers import build

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
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": {"quant_method": method, **fields}}
    file.write_text(json.dumps(config))
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
