"""`genret init-model`: what it chooses for a checkpoint, what it writes, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.service.main import cli
from tests.checkpoints import END, make_checkpoint, make_index
from tests.commands import refusal, run, succeed
from tests.retrieval.test_prompts import STOP, chat_checkpoint
from tests.service.server_process import ServerProcess

genret, done = partial(run, cli), partial(succeed, cli)


def titles_in(folder: Path) -> Path:
    (folder / "titles.txt").write_text("Nile\nParis\nHamlet\n")
    return folder / "titles.txt"


def bare(folder: Path, architecture: str = "llama") -> Path:
    checkpoint = make_checkpoint(folder, architecture, max_positions=1024)
    (checkpoint / "genret.json").unlink()
    return checkpoint


def test_a_checkpoint_with_a_chat_template_is_asked_in_conversations(tmp_path: Path) -> None:
    checkpoint = chat_checkpoint(tmp_path)
    result = done("init-model", checkpoint)
    assert result.stdout.splitlines() == [
        f"{checkpoint / 'genret.json'}",
        "  prompt     chat: the checkpoint has a chat template",
        "  mentions   chat-mention: what goes with chat",
        "  titles     'Entity: TITLE': as they stand behind the prompt",
        f"  end token  {STOP!r} (321): what ends them there",
        f"next: genret build TITLES --tokenizer {checkpoint}",
    ]
    told = json.loads(done("init-model", checkpoint, "--force", "--json").stdout)
    assert told["file"] == str(checkpoint / "genret.json")
    assert (told["chosen"]["prompt"], told["reasons"]["mentions"]) == ("chat", "what goes with chat")
    assert told["warning"] is None
    config = CheckpointConfig.load(checkpoint)
    assert (config.default_prompt, config.mention_prompt) == ("chat", "chat-mention")
    assert (config.answer_prompt, config.annotate_prompt) == ("chat-json", "annotate")
    assert config.title_rendering() == Rendering(context="Entity:", prefix=" ", end_token=STOP)


@pytest.mark.parametrize(
    ("architecture", "prompt", "end"), [("llama", "few-shot", "Ċ"), ("bart", "plain", END)]
)
def test_without_one_it_is_shown_examples_or_has_to_be_trained(
    tmp_path: Path, architecture: str, prompt: str, end: str
) -> None:
    checkpoint = bare(tmp_path, architecture)
    done("init-model", checkpoint)
    config = CheckpointConfig.load(checkpoint)
    assert config.default_prompt == prompt
    tokenizer = TextTokenizer.load(checkpoint)
    assert tokenizer.end_token_id(config.title_rendering()) == tokenizer.token_id(end)
    index = tmp_path / "titles.index"
    done("build", titles_in(tmp_path), "--out", index, "--tokenizer", checkpoint)
    asked = done("ask", index, "river", "--model", checkpoint, "--json", "--method", "beam")
    assert json.loads(asked.stdout)["candidates"]


def test_what_is_given_is_what_is_written(tmp_path: Path) -> None:
    checkpoint = chat_checkpoint(tmp_path)
    result = done(
        "init-model", checkpoint, "--prompt", "few-shot", "--mention-prompt", "mention", "--end-token", END
    )
    assert "prompt     few-shot: as --prompt says" in result.stdout
    assert "mentions   mention: as --mention-prompt says" in result.stdout
    assert f"end token  {END!r} (1): as --end-token says" in result.stdout
    config = CheckpointConfig.load(checkpoint)
    assert config.title_rendering() == Rendering(context="Entity:", prefix=" ", end_token=END)
    assert config.rendering == config.title_rendering()


@pytest.mark.parametrize("is_folder", [False, True], ids=["the file", "its folder"])
def test_that_of_a_gguf_file_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    pytest.importorskip("gguf")
    from tests.tiny_gguf import write_gguf

    monkeypatch.setenv("GENRET_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "models" / "tiny.gguf"
    file.parent.mkdir()
    write_gguf(file)
    model = file.parent if is_folder else file
    result = done("init-model", model)
    assert result.stdout.splitlines()[-1] == f"next: genret build TITLES --tokenizer {model}"
    assert (file.parent / "genret.json").is_file()
    config = CheckpointConfig.load(Path(TextTokenizer.load(model).source))
    assert (config.default_prompt, config.mention_prompt) == ("few-shot", "few-shot-mention")


@pytest.mark.parametrize("end", ["\\n", "\n", "Ċ"])
def test_a_line_break_may_be_written_in_three_ways(tmp_path: Path, end: str) -> None:
    checkpoint = bare(tmp_path)
    result = done("init-model", checkpoint, "--end-token", end)
    assert "warning" not in result.stderr
    tokenizer = TextTokenizer.load(checkpoint)
    rendering = CheckpointConfig.load(checkpoint).title_rendering()
    assert tokenizer.end_token_id(rendering) == tokenizer.token_id("Ċ")


def test_an_end_token_that_is_a_letter_is_a_warning(tmp_path: Path) -> None:
    result = done("init-model", bare(tmp_path), "--end-token", "a")
    assert f"warning: the end token 'a' is the text 'a' in the vocabulary of {tmp_path}" in result.stderr
    assert f"there {END!r} ends a text and 'Ċ' ends a line" in result.stderr


TWO_ENDS = "'few-shot-mention' ends titles with '\\n', the prompt 'plain' with 'the end-of-sequence token'"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--prompt", "x"], 2, "unknown template 'x'; known: ['annotate', 'few-shot', "),
        (["--prompt", "chat"], 2, "'chat' needs a checkpoint with a chat template"),
        (["--mention-prompt", "x"], 2, "unknown template 'x'; known: "),
        (["--end-token", "<stop>"], 2, "end-token: '<stop>' is not in the vocabulary of"),
        (["--prompt", "plain", "--mention-prompt", "few-shot-mention"], 2, TWO_ENDS),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    assert said in refusal(cli, "init-model", bare(tmp_path), *arguments, code=code)
    assert not (tmp_path / "genret.json").exists()


def test_a_file_that_is_there_is_replaced_by_force_alone(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    before = (checkpoint / "genret.json").read_bytes()
    refused = refusal(cli, "init-model", checkpoint, code=1)
    assert f"{checkpoint / 'genret.json'} is there already; replace it with --force" in refused
    assert (checkpoint / "genret.json").read_bytes() == before
    done("init-model", checkpoint, "--force")
    assert CheckpointConfig.load(checkpoint).default_prompt == "few-shot"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    (bare(tmp_path) / name).unlink()
    refused = refusal(cli, "init-model", tmp_path, code=1)
    assert f"expected a checkpoint with {name}, got none" in refused


def test_commands_take_a_prompt_and_refuse_one_that_does_not_fit(tmp_path: Path) -> None:
    """The same option from the index to the answer: build, ask, tune and evaluate."""
    checkpoint = bare(tmp_path / "model")
    index = tmp_path / "lines.index"
    build = ["build", titles_in(tmp_path), "--out", index, "--tokenizer", checkpoint]
    assert "unknown template 'x'; known: " in genret(*build, "--prompt", "x").stderr
    assert "ask with" not in genret(*build).stdout
    assert "ask with" not in genret(*build, "--prompt", "plain").stdout
    built = done(*build, "--prompt", "few-shot")
    assert built.stdout.splitlines()[-1] == "  ask with: --prompt few-shot"
    asked = ["river", "--model", checkpoint, "--method", "beam", "--prompt", "few-shot"]
    done("ask", index, *asked)
    by_default = make_index(tmp_path / "default", checkpoint)
    queries = tmp_path / "queries.tsv"
    queries.write_text("query\tentity_id\nriver\tQ7\nriver in egypt\tQ7\n")
    evaluate = [
        *("evaluate", "--index", by_default, "--model", checkpoint, "--set", f"queries:{queries}"),
        *("--method", "trie", "--out", tmp_path / "report", "--no-plots", "--resamples", "100"),
    ]
    refused = genret("ask", by_default, *asked)
    assert "--prompt plain, or rebuild the index" in refused.stderr
    for result in (refused, genret(*evaluate, "--prompt", "few-shot")):
        assert result.exit_code == 1
        assert "but the prompt 'few-shot' of" in result.stderr
    told = json.loads(done(*evaluate, "--prompt", "plain", "--json").stdout)
    assert told == json.loads((tmp_path / "report" / "results.json").read_text()) | {"out": told["out"]}
    assert "--prompt plain" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.slow  # processes that load a model
def test_a_server_takes_a_prompt_for_requests_that_name_none(tmp_path: Path) -> None:
    checkpoint = bare(tmp_path / "model")
    rendering = CheckpointConfig.load(checkpoint).with_prompt("few-shot").title_rendering()
    index = make_index(tmp_path, checkpoint, rendering=rendering)
    with ServerProcess(str(index), "--model", str(checkpoint), "--prompt", "x") as refused:
        refused.said("unknown template 'x'; known: [")
    with ServerProcess(str(index), "--model", str(checkpoint), "--prompt", "few-shot") as server:
        server.said("ready on ")
    by_text = make_index(tmp_path / "text", checkpoint)
    with ServerProcess(str(by_text), "--model", str(checkpoint), "--prompt", "few-shot") as refused:
        refused.said("but the prompt 'few-shot' of")
