"""Loading checkpoints from a directory: types, devices and everything that may be wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM

from decoding.errors import ModelLoadError, UnsupportedModelError
from decoding.model import model_loading
from decoding.model.hf_model import HFLanguageModel

VOCAB = 40


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
    ).eval()


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
    config = BartConfig(
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=20,
    )
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
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
    monkeypatch.setattr(model_loading, "_cpu_multiplies_bfloat16", lambda: hardware)
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


def test_pickled_weights_are_refused(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    torch.save(load_file(weights), checkpoint / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelLoadError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        HFLanguageModel.load(checkpoint, device="cpu")


def test_no_weights_at_all(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"holds no \*\.safetensors"):
        HFLanguageModel.load(checkpoint, device="cpu")


def test_no_model_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        HFLanguageModel.load(tmp_path, device="cpu")
    file = tmp_path / "weights.safetensors"
    file.touch()
    with pytest.raises(ModelLoadError, match="is a file"):
        HFLanguageModel.load(file, device="cpu")


@pytest.mark.parametrize("place", [Path("absent"), "/absent/model", "../absent", "a/b/c"])
def test_no_such_directory(place: str | Path) -> None:
    with pytest.raises(ModelLoadError, match="no such model directory"):
        HFLanguageModel.load(place, device="cpu")


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
        with pytest.raises(ModelLoadError, match="the hub was asked"):
            HFLanguageModel.load(hub_id, device="cpu")
    assert asked == ["owner/name", "name"]


def test_missing_weights_are_not_invented(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"1 missing keys \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        HFLanguageModel.load(checkpoint, device="cpu")


def test_weights_of_another_shape(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["intermediate_size"] = 32
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="llama"):
        HFLanguageModel.load(checkpoint, device="cpu")


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"])
def test_broken_weights(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match="cannot load 'llama' weights"):
        HFLanguageModel.load(checkpoint, device="cpu")


@pytest.mark.parametrize("content", ["{", '{"model_type": "no_such_model"}', "[]"])
def test_broken_configuration(checkpoint: Path, content: str) -> None:
    (checkpoint / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match="no model configuration"):
        HFLanguageModel.load(checkpoint, device="cpu")


def test_a_refused_architecture_is_named_before_its_weights_are_read(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UnsupportedModelError, match="mamba"):
        HFLanguageModel.load(checkpoint, device="cpu")
