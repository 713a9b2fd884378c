"""`genret train --lora`: an adapter that opens, on weights that stay as they are."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file

from genret.retrieval.checkpoints import find_checkpoint, folder_fingerprint
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training import lora
from genret.retrieval.training.training_run import load_model
from tests.retrieval.training.test_training_run import check_resumed, dev_hits, refused, trained
from tests.tiny_gguf import write_gguf


@pytest.fixture
def data(data: Path) -> Path:
    """Catalogue, queries, and a model to adapt."""
    trained(data, "base", "--preset", "tiny", "--max-steps", "20")
    return data


def adapt(data: Path, out: str, options: str, model: str = "base") -> Result:
    return trained(data, out, "--model", data / model, *options.split())


def refusal(data: Path, options: str, model: str = "base", code: int = 2) -> str:
    return refused(data, "refused", "--model", data / model, *options.split(), code=code)


def adapter_weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "adapter_model.safetensors"))


def test_an_adapter_is_learnt_written_and_opened(data: Path) -> None:
    before = folder_fingerprint(data / "base")
    result = adapt(data, "out", "--lora 8 --max-steps 150 --learning-rate 3e-3 --eval-steps 100")
    metrics = json.loads(result.stdout)
    assert metrics["lora"] == 8
    assert metrics["fine_tuned_from"] == str(data / "base")
    assert metrics["trainer"]["learning_rate"] == 3e-3
    untaught = json.loads((data / "base" / "metrics.json").read_text())["hits"]["exact title"]
    assert metrics["hits"]["exact title"]["hits_at_1"] > untaught["hits_at_1"]
    assert re.search(r"base: \d+ k parameters, [\d.]+ k trained\n", result.stderr)
    assert "dev (first 1), beam search over the titles  hits@1" in result.stderr

    out = data / "out"
    assert folder_fingerprint(data / "base") == before
    assert not (out / "model.safetensors").exists()
    assert {tensor.dtype for tensor in adapter_weights(out).values()} == {torch.float16}
    found = find_checkpoint(out)
    assert found.adapter == out
    assert Path(found.weights) == data / "base"
    tokenizer = TextTokenizer.load(out)
    assert tokenizer.fingerprint == TextTokenizer.load(data / "base").fingerprint
    assert tokenizer.end_token == "</s>"
    assert CheckpointConfig.load(out) == CheckpointConfig.load(data / "base")
    assert dev_hits(data, out) == metrics["hits"]["dev"]


def test_all_linear_layers_but_the_head_are_adapted(data: Path) -> None:
    model = load_model(str(data / "base"))
    modules = model.named_modules()
    linear = {name for name, module in modules if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    adapted = lora.with_lora(model, 4, None)
    names = {n.split(".lora_")[0] for n, p in adapted.get_base_model().named_parameters() if p.requires_grad}
    assert names == linear
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}


def test_of_the_upper_layers_alone(data: Path) -> None:
    layers = load_model(str(data / "base")).config.num_hidden_layers
    adapt(data, "out", "--lora 2 --lora-layers 1 --max-steps 2 --bf16")
    names = adapter_weights(data / "out")
    assert names
    assert all(f".layers.{layers - 1}." in name for name in names)
    load_model(str(data / "out"))  # every matrix has its place
    assert f"must be at most {layers}" in refusal(data, "--lora 2 --lora-layers 99")


def test_of_an_encoder_decoder_the_decoder_s(data: Path) -> None:
    trained(data, "seq", "--preset", "small-seq2seq", "--max-steps", "1")
    adapt(data, "out", "--lora 2 --lora-layers 1 --max-steps 2", "seq")
    assert all(".decoder." in name for name in adapter_weights(data / "out"))


def test_frozen_weights_are_bfloat16_and_matrices_float32(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    with_lora = lora.with_lora

    def noted(*arguments: Any) -> Any:
        seen.append(with_lora(*arguments))
        return seen[-1]

    monkeypatch.setattr(lora, "with_lora", noted)
    result = adapt(data, "out", "--lora 2 --max-steps 2 --bf16 --eval-steps 1")
    (adapted,) = seen
    assert {p.dtype for p in adapted.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert "dev (first 1)" in result.stderr
    assert {tensor.dtype for tensor in adapter_weights(data / "out").values()} == {torch.float16}


def test_a_killed_run_resumes_to_the_same_matrices(data: Path) -> None:
    check_resumed(data, "adapter_model.safetensors", "--model", str(data / "base"), "--lora", "4", steps=12)


def test_the_base_may_be_a_gguf_file(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRET_CACHE", str(data / "cache"))
    write_gguf(data / "model.gguf")
    adapt(data, "out", "--lora 2 --max-steps 2", "model.gguf")
    assert find_checkpoint(data / "out").weights == find_checkpoint(data / "model.gguf").weights
    assert CheckpointConfig.load(data / "out").rendering.context == "Entity:"
    adapt(data, "whole", "--max-steps 1", "out")  # adapters can be tuned on
    assert find_checkpoint(data / "whole").adapter is None


def losses(out: Path, steps: int) -> list[float]:
    state = json.loads((out / "checkpoints" / f"checkpoint-{steps}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def test_a_run_goes_on_from_an_adapter_where_it_was(data: Path) -> None:
    learn = ("--lora", "4", "--lora-layers", "1", "--learning-rate", "3e-3", "--save-dtype", "float32")
    trained(data, "first", "--model", str(data / "base"), *learn, "--max-steps", "60")
    told = ("--max-steps", "1", "--log-steps", "1", "--seed", "5")
    # The same examples behind the merged weights, and behind those of the base.
    trained(data, "whole", "--model", str(data / "first"), *told)
    trained(data, "bare", "--model", str(data / "base"), *told)
    trained(data, "second", "--model", str(data / "first"), *learn, *told)
    (merged,), (untaught,), (loss,) = (losses(data / out, 1) for out in ("whole", "bare", "second"))
    assert loss == pytest.approx(merged, abs=1e-3)
    assert untaught > loss + 0.1
    found = find_checkpoint(data / "second")
    assert (found.adapter, Path(found.weights)) == (data / "second", data / "base")
    ours, theirs = adapter_weights(data / "second"), adapter_weights(data / "first")
    assert ours.keys() == theirs.keys()
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)
    config = [json.loads((data / out / "adapter_config.json").read_text()) for out in ("first", "second")]
    for field in ("r", "lora_alpha", "base_model_name_or_path"):
        assert config[0][field] == config[1][field]
    assert CheckpointConfig.load(data / "second") == CheckpointConfig.load(data / "first")
    load_model(str(data / "second"))

    said = refusal(data, "--lora 8 --max-steps 1", "first")
    assert f"lora: must be 4, the rank of the adapter {data / 'first'}, got 8" in said
    said = refusal(data, "--lora 4 --lora-layers 2 --max-steps 1", "first")
    assert f"lora_layers: must be those of the adapter {data / 'first'}, which has matrices beside" in said
    assert "beside 1 of 2 layers, got 2" in said


def test_the_base_of_an_adapter_that_is_trained_on_may_be_named_from_its_folder(data: Path) -> None:
    common = ("--lora", "2", "--max-steps", "1")
    trained(data, "first", "--model", str(data / "base"), *common)
    settings = data / "first" / "genret.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "base": "../base"}))
    trained(data, "second", "--model", str(data / "first"), *common, "--bf16")
    assert Path(find_checkpoint(data / "second").weights).resolve() == (data / "base").resolve()
    assert {tensor.dtype for tensor in adapter_weights(data / "second").values()} == {torch.float16}


def test_an_adapter_of_another_kind_is_not_trained_on(data: Path) -> None:
    from peft import LoHaConfig, get_peft_model

    other = get_peft_model(load_model(str(data / "base")), LoHaConfig(r=2, target_modules=["q_proj"]))
    other.peft_config["default"].base_model_name_or_path = str(data / "base")
    other.save_pretrained(data / "loha")
    said = refusal(data, "--lora 2 --max-steps 1", "loha")
    assert f"lora: goes on with LoRA adapters, and {data / 'loha'} is LOHA" in said


def test_without_peft_the_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.retrieval.errors.find_spec", lambda name: None if name == "peft" else name)
    assert "generative-retrieval[lora]" in refusal(data, "--lora 2", code=1)


def test_a_whole_model_replaces_an_adapter_of_an_earlier_run(data: Path) -> None:
    common = ("--model", str(data / "base"), "--max-steps", "1")
    trained(data, "out", *common, "--lora", "2")
    shutil.rmtree(data / "out" / "checkpoints")
    trained(data, "out", *common)
    assert find_checkpoint(data / "out").adapter is None
    assert (data / "out" / "model.safetensors").is_file()
