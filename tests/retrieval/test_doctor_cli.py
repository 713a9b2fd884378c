"""`genret doctor` as a user sees it: tables, a verdict, exit codes, JSON, and refusals by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedModel, StableLmConfig

import genret.decoding.model.hf_model
from genret.service.main import cli
from tests.checkpoints import make_checkpoint
from tests.commands import refusal, run
from tests.verified_architectures import COMMON, build

QUICK = ("--trees", "1", "--depth", "3", "--beams", "3", "--prompt-tokens", "12")


def doctor(*arguments: str | Path, code: int = 0) -> Result:
    done = run(cli, "doctor", *arguments)
    assert done.exit_code == code, done.output
    return done


def verdict_of(done: Result) -> str:
    """Return the last paragraph as one line."""
    return " ".join(done.stdout.split("\n\n")[-1].split())


def saved(folder: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("genret.retrieval.progress._LINE_SECONDS", math.inf)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("gemma3"), build("gemma3"))


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bart"), build("bart"))


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, state_size=4)
    return saved(tmp_path_factory.mktemp("mamba"), AutoModelForCausalLM.from_config(config))


def test_an_exact_model(gemma: Path, tmp_path: Path) -> None:
    """As tables, and as JSON in a file beside them."""
    file = tmp_path / "found.json"
    done = doctor(gemma, *QUICK, "--json", file)
    lines = done.stdout.splitlines()
    assert lines[0] == f"model         {gemma}"
    assert "architecture  gemma3_text" in lines
    assert "layers        2 x sliding attention, window 6" in lines
    assert "              1 x full attention" in lines
    assert any(line.startswith("with a shared prefix") for line in lines)
    assert any(line.startswith("EXACT: log-probabilities differ by at most") for line in lines)
    assert verdict_of(done).startswith(f"Use: {gemma}: no tokenizer.json in this directory")
    assert done.stderr == ""
    table = lines[lines.index(next(line for line in lines if line.startswith("token trees"))) :]
    ends = {len(line) for line in (table[0], table[1], table[2])}
    assert len(ends) == 1, "the table is not aligned"
    found = json.loads(file.read_text())
    assert (found["model"], found["verdict"], found["standing"]) == (str(gemma), "exact", "verified")
    assert found["layers"] == ["sliding attention, window 6", "full attention", "sliding attention, window 6"]
    assert [layer["layer"] for layer in found["examination"]["by_layer"]] == [0, 1, 2]
    assert found["examination"]["first_different_layer"] is None
    assert len(found["examination"]["scenarios"]) == 7


def test_bfloat16_says_what_it_cannot_say(gemma: Path) -> None:
    done = doctor(gemma, *QUICK, "--dtype", "bfloat16")
    assert "In bfloat16 the kernels round differently for different batch shapes" in done.stdout
    assert "AGREES: the relative difference is" in done.stdout


def test_an_encoder_decoder_has_no_prefix_to_share(bart: Path) -> None:
    line = next(
        line for line in doctor(bart, *QUICK).stdout.splitlines() if line.startswith("with a shared prefix")
    )
    assert line.endswith("cannot be done")


def test_a_difference_is_located_and_the_model_is_not_to_be_used(
    bart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genret.decoding.model.hf_model, "use_true_positions", lambda embedding: None)
    file = tmp_path / "found.json"
    verdict = verdict_of(doctor(bart, *QUICK, "--json", file, code=1))
    found = json.loads(file.read_text())
    assert (found["verdict"], found["usage"]) == ("differs", None)
    assert verdict.startswith("DIFFERS: log-probabilities differ by at most")
    assert verdict.endswith("It begins at decoder layer 0 (full attention, cross-attention).")


def test_a_broken_checkpoint_is_not_blamed_on_the_token_tree(tmp_path: Path) -> None:
    model = build("gemma3")
    next(model.parameters()).data.fill_(float("nan"))
    verdict = verdict_of(doctor(saved(tmp_path, model), *QUICK, code=1))
    assert verdict == "DIFFERS: the model's own plain passes answer NaN, so that nothing agrees with them."


def test_a_refused_architecture_is_not_even_loaded(mamba: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((mamba / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    refused = "REFUSED: model type 'mamba' is not supported: its recurrent state"
    assert refused in doctor(tmp_path, code=1).stdout
    found = json.loads(doctor(mamba, "--json", "-", code=1).stdout)
    assert (found["verdict"], found["standing"]) == ("refused", "refused")
    assert "examination" not in found


def test_a_refused_architecture_is_compared_on_demand(mamba: Path) -> None:
    done = doctor(mamba, "--even-if-refused", *QUICK, code=1)
    assert "FAILED: token-tree decoding cannot run this model" in done.stdout


def test_an_architecture_that_the_check_at_loading_would_refuse(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = StableLmConfig(**{**COMMON, "num_key_value_heads": 4})
    done = doctor(saved(tmp_path, AutoModelForCausalLM.from_config(config)), *QUICK, code=1)
    assert "not verified: a short check decides whenever it is loaded" in done.stdout
    assert "DIFFERS" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere"], "'./nowhere' is neither an existing path nor a valid hub id (OWNER/NAME)"),
        (["{bart}/config.json"], "config.json is a file; expected the directory of a checkpoint"),
        (["{bart}", "--prompt-tokens", "41"], "prompt_tokens must be in [8, 40] for this model, got 41"),
        (["{bart}", "--prompt-tokens", "3"], "prompt_tokens must be at least 8, got 3"),
        (["{bart}", "--depth", "40"], "depth must be below 39"),
        (["{bart}", "--dtype", "float16", "--device", "cpu"], "float16 is not computed on a CPU"),
        (["{bart}", "--device", "abacus"], "unknown device 'abacus'"),
        (["{bart}", "--trees", "0"], "0 is not in the range x>=1"),
        (["{bart}", "--json", "nowhere/at/all.json"], "no such directory: nowhere/at"),
    ],
)
def test_what_cannot_be_run_exits_with_2(arguments: list[str], message: str, bart: Path) -> None:
    said = refusal(cli, "doctor", *(argument.format(bart=bart) for argument in arguments))
    assert message in said


def test_ctrl_c_is_one_word(bart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("genret.decoding.conformance.layer_reader.plain_answers", interrupted)
    assert refusal(cli, "doctor", bart, *QUICK, code=130) == "interrupted"


def usage_of(folder: Path) -> dict[str, Any]:
    usage: dict[str, Any] = json.loads(doctor(folder, *QUICK, "--json", "-").stdout)["usage"]
    assert usage.pop("query_s") > 0
    return usage


def test_a_taught_checkpoint_is_used_as_it_says(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "my model", "llama")
    usage = usage_of(folder)
    config = json.loads((folder / "config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    weights = load_file(folder / "model.safetensors")
    assert usage == {
        "prompt": "'plain' of its genret.json",
        "end_token": "</s>",
        "dtype": "float32",
        "why_dtype": "below 50 M parameters less gains little",
        "weights_bytes": sum(4 * tensor.numel() for tensor in weights.values()),
        "kv_bytes_per_token": config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head * 4,
        "query": "48 tokens of prompt, 10 beams, titles of 6 tokens, one query at a time",
        "commands": [
            f"genret build CATALOGUE --tokenizer '{folder}' --out my.index",
            f"genret serve my.index --model '{folder}' --dtype float32",
        ],
    }


BY_TEMPLATE = "its chat template; it has no genret.json, which"
FEW_SHOT = "few-shot; it has no chat template and no genret.json, which `genret init-model`"


@pytest.mark.parametrize(
    ("architecture", "file", "content", "prompt"),
    [
        ("llama", "chat_template.jinja", "{{ messages }}", BY_TEMPLATE),
        ("llama", "tokenizer_config.json", '{"chat_template": "x"}', BY_TEMPLATE),
        ("llama", None, "", FEW_SHOT),
        ("bart", None, "", "none that it knows: teach it with `genret train --model`"),
    ],
)
def test_a_checkpoint_from_elsewhere_needs_a_prompt(
    architecture: str, file: str | None, content: str, prompt: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", architecture)
    (folder / "genret.json").unlink()
    if file is not None:
        (folder / file).write_text(content)
    usage = usage_of(folder)
    assert usage["prompt"].startswith(prompt)
    assert (usage["commands"][0] == f"genret init-model {folder}") == (architecture == "llama")
    lines = doctor(folder, *QUICK).stdout.splitlines()
    assert lines[-1] == f"              genret serve my.index --model {folder} --dtype float32"
