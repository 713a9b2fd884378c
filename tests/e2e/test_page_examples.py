"""Examples of README.md and docs run as they stand, and print what the pages say.

Those of the README and docs/library.md are answered by the default model, whose weights are a package of
their own; those of other pages by the small one, as the pages say. Of docs/http.md, times, digests and last
digits may differ.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from genret.index_builder.build_options import VectorBuildOptions
from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE
from genret.retrieval.defaults import missing_weights
from genret.retrieval.vectors.embedder import VectorMethod
from tests.e2e.pages import ROOT, blocks, differ, examples, genret, run, shell, text_of
from tests.sample_index import build_sample_index
from tests.service.server_process import ServerProcess

README = text_of("README.md") + text_of("docs/library.md")
EVALUATION = text_of("docs/evaluation.md")
JSON_ANSWERS = text_of("docs/json-answers.md")


def with_data(folder: Path) -> Path:
    """Put the data that came with the code where a reader has it."""
    (folder / "data").symlink_to(ROOT / "data")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader stands: the sample index with past queries, and the data."""
    folder = with_data(tmp_path_factory.mktemp("reader"))
    build_sample_index(folder / "sample.index", with_queries=True)
    return folder


@pytest.fixture(scope="module")
def evaluation_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of docs/evaluation.md stands: no past queries, and the sets of the page."""
    folder = with_data(tmp_path_factory.mktemp("evaluated"))
    build_sample_index(folder / "sample.index")
    sets = r"^`(sets/[\w./]+)`[^`]*(?:`[^`\n]+`[^`]*)*?\n```\w*\n(.*?)```"
    shown = re.findall(sets, EVALUATION, re.DOTALL | re.MULTILINE)
    assert len(shown) == 8
    for name, text in shown:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def built_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of the README stands, with what its commands build with the default model."""
    if (missing := missing_weights()) is not None:
        pytest.skip(f"the default model's weights are not installed: {missing}")
    folder = with_data(tmp_path_factory.mktemp("readme"))
    commands = re.findall(r"^(?:\$ )?genret (build data/.*)$", README.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DEFAULT_MODEL_VARIABLE, raising=False)
        for command in commands:
            genret(command, folder)
    return folder


@pytest.fixture
def readme_folder(built_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, and no model is named."""
    monkeypatch.delenv(DEFAULT_MODEL_VARIABLE, raising=False)
    return built_folder


def example(word: str) -> str:
    """Return the one block of the README or of docs/library.md that uses a name."""
    (found,) = [block for block in blocks(README) if word in block]
    return found


def check_page(name: str, folder: Path, number: int, *, has_client: bool = False) -> None:
    """Run a page's examples in one process, as libraries load slowly; the last may be that of a client."""
    page = text_of(f"docs/{name}.md")
    told = examples(page)
    assert len(blocks(page)) == len(told) == number
    local = told[:-1] if has_client else told
    assert not differ(run("\n".join(code for code, _ in local), folder), "".join(said for _, said in local))
    if has_client:
        client, replied = told[-1]
        with ServerProcess(str(folder / "sample.index")) as server:
            assert not differ(run(client.replace("127.0.0.1:50051", server.address()), folder), replied)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param("disc", 5, marks=pytest.mark.slow),
        pytest.param("beam-search", 7, marks=pytest.mark.slow),
        ("numbers", 4),
    ],
)
def test_the_examples_of_a_page_print_what_it_says(folder: Path, name: str, number: int) -> None:
    check_page(name, folder, number)


def test_the_examples_of_the_page_of_completion_print_what_it_says(folder: Path) -> None:
    page = text_of("docs/complete.md")
    session = r"^\$ genret (complete [^\n|]*) \| cut -f 3-6\n(.*?)^```"
    ((command, said),) = re.findall(session, page, re.DOTALL | re.MULTILINE)
    printed = genret(command, folder).splitlines()
    assert ["\t".join(line.split("\t")[2:6]) for line in printed] == said.splitlines()
    check_page("complete", folder, 3, has_client=True)


def test_the_examples_of_the_page_of_building_print_what_it_says(tmp_path: Path) -> None:
    check_page("building", tmp_path, 2)
    first, _ = blocks(text_of("docs/building.md"))
    assert len([line for line in first.splitlines() if line]) == 5  # to the first answer


@pytest.mark.slow
def test_the_examples_of_the_ranking_page_print_what_it_says(tmp_path: Path) -> None:
    page = text_of("docs/ranking.md")
    commands = re.findall(r"^genret (build .*)$", page, re.MULTILINE)
    genret(commands[0], with_data(tmp_path))  # the second one weighs the model too
    check_page("ranking", tmp_path, 3)
    ((command, told),) = re.findall(r"^\$ genret (tune [^\n]*)\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    lines = genret(f"{command} --dry-run", tmp_path).splitlines()
    shown = [line for line in told.splitlines() if line != "…"]
    assert len(shown) > 8
    assert [line for line in lines if line in shown] == shown


@pytest.mark.slow
def test_the_examples_of_the_page_of_shortlists_print_what_it_says(tmp_path: Path) -> None:
    wish = VectorBuildOptions(VectorMethod("encoder", str(ROOT / "data" / "small-model")))
    build_sample_index(with_data(tmp_path) / "sample.index", vectors=wish)
    check_page("shortlists", tmp_path, 2, has_client=True)


@pytest.mark.slow
def test_the_examples_of_the_page_of_adapters_print_what_it_says(folder: Path) -> None:
    for library in ("langchain_core", "llama_index.core", "haystack", "spacy"):
        pytest.importorskip(library)
    check_page("adapters", folder, 5, has_client=True)


@pytest.mark.slow
def test_the_first_json_answer_is_written(evaluation_folder: Path) -> None:
    answer, entity, figures = run(blocks(JSON_ANSWERS)[0], evaluation_folder).splitlines()
    assert re.search(r" (person|city|chemical element|animal|book|film)$", answer)
    assert re.fullmatch(r"/title \['\w+\.[^']+'(, '[^']+')*\]", entity)
    assert re.fullmatch(r"\d+ tokens, \d+ of them forced", figures)


@pytest.mark.slow
def test_the_schemas_from_practice_are_answered_as_the_page_says(readme_folder: Path) -> None:
    ((code, said),) = [found for found in examples(JSON_ANSWERS) if "# a call of a tool" in found[0]]
    (build,) = re.findall(
        r"^genret (build .* default\.index .*)$", JSON_ANSWERS.replace("\\\n", " "), re.MULTILINE
    )
    genret(build, readme_folder)
    assert run(code, readme_folder) == said


@pytest.mark.slow
def test_the_first_session_of_the_readme_prints_what_it_says(readme_folder: Path) -> None:
    """Titles, entities and reasons; numbers are those of one processor, and of another a little different."""
    session = r"^\$ genret (ask [^\n|]*?)(?: \|[^\n]*)?\n(.*?)(?=^\$|^```)"
    asked = re.findall(session, README, re.MULTILINE | re.DOTALL)
    assert len(asked) == 2
    for command, printed in asked:
        as_json = command if "--json" in command else f"{command} --json"
        answer = json.loads(genret(as_json, readme_folder))
        titles = [candidate["title"] for candidate in answer["candidates"]]
        assert titles == (re.findall(r"│ \d │ (.*?) +│", printed) or [json.loads(printed)[0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("TitleTrieLogitsProcessor", [r"\['Munich'\]", ".*", ".*", ".*"]),
        ("result.nothing_fits < 0.5", ["Munich True"]),
        (
            "deny_ids=",
            [
                r"Munich -0\.\d+ 0\.\d+ \{'\w+': .*'model': -0\.\d+.*\} 0\.\d+",
                r"0\.\d+ \+/- 0\.\d+",
                r"\[\('\w[^']*', 0\.\d+\), .*",
            ],
        ),
    ],
)
def test_an_example_of_the_library_prints_such_lines(
    readme_folder: Path, word: str, lines: list[str]
) -> None:
    printed = run(example(word), readme_folder).splitlines()
    for line, pattern in zip(printed, lines, strict=True):
        assert re.fullmatch(pattern, line)


@pytest.mark.slow
def test_the_example_of_a_json_answer_prints_a_title_and_its_entity(readme_folder: Path) -> None:
    (schema,) = blocks(README, "json")
    (readme_folder / "entity.json").write_text(schema, encoding="utf-8")
    (line,) = run(example("retriever.answer("), readme_folder).splitlines()
    source = json.loads(schema)["properties"]["source"]["const"]
    assert re.fullmatch(rf"{source} /title Munich \['\w+\.munich'\]", line)


@pytest.mark.slow
def test_the_example_of_the_client_library_prints_what_a_server_finds(readme_folder: Path) -> None:
    code = example("AsyncRetrievalClient")
    with ServerProcess(str(readme_folder / "sample.index")) as server:
        lines = run(code.replace("127.0.0.1:50051", server.address()), readme_folder).splitlines()
    assert re.fullmatch(r"\w.* [0-9a-f]{32}", lines[0])
    assert len(lines) == 3
    assert "german city where oktoberfest is held -> Munich" in lines[1:]


def test_the_commands_of_the_training_page_say_what_it_says(tmp_path: Path) -> None:
    """Times and free memory are those of another machine; all else of a plan is the same."""
    session = r"^\$ genret (train [^\n]*)\n(.*?)^```"
    planned, objected, changed = re.findall(session, text_of("docs/training.md"), re.MULTILINE | re.DOTALL)

    def without_times(text: str) -> str:
        text = re.sub(r"time +.*|\S+ GB there", "", text)
        return re.sub(r"take .+ on this|--max-steps \d+ fits", "", text)

    folder = with_data(tmp_path)
    for command, said in (planned, objected):
        assert without_times(genret(command, folder)) == without_times(said)
    assert not (folder / "my-model").exists()
    checkpoints = folder / "my-model" / "checkpoints"
    command = [sys.executable, "-m", "genret", *planned[0].replace(" --plan", "").split()]
    with subprocess.Popen([*command, "--save-steps", "1"], cwd=folder, stderr=subprocess.DEVNULL) as stopped:
        while not list(checkpoints.glob("checkpoint-*/genret_budget.json")):
            assert stopped.poll() is None
            time.sleep(0.01)
        stopped.kill()
    command = [sys.executable, "-m", "genret", *changed[0].split()]
    refused = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"\n{changed[1]}")


def figures(table: str, method: str) -> list[float]:
    """Return the metric of a method and its interval."""
    (line,) = [line for line in table.splitlines() if line.startswith(f"{method} ")]
    return [float(number) for number in re.findall(r"\d\.\d{3}", line)]


@pytest.mark.slow
def test_the_commands_of_the_evaluation_page_print_what_it_says(evaluation_folder: Path) -> None:
    folder = evaluation_folder
    quick, five, own = blocks(EVALUATION, "bash")
    before = EVALUATION.split("## Labelled sets")[0]
    (said,) = re.findall(r"```bash\n.*?```\n```\n(.*?)```", before, re.DOTALL)
    printed = shell(quick, folder)
    names = [[line.split()[0] for line in table.splitlines()] for table in (printed, said)]
    assert names[0] == names[1]
    for method in ("beam", "bm25"):  # the others draw, and torch draws otherwise on other machines
        assert figures(printed, method) == pytest.approx(figures(said, method), abs=0.0101)
    mine = shell(own, folder)
    assert figures(mine, "run:report/runs/questions/beam.run") == figures(printed, "beam")
    assert figures(mine, "bm25") == figures(printed, "bm25")
    files = ("report.html", "report.md", "results.json", "evaluation.json", "runs/questions/qrels.txt")
    for name in (*files, "plots"):
        assert (folder / "report" / name).exists()
        assert name.rpartition("/")[2] in EVALUATION
    shell(five, folder)
    sets = {s["name"]: s for s in json.loads((folder / "five" / "results.json").read_text())["sets"]}
    assert [(s["kind"], s["primary"]) for s in sets.values()] == [
        ("queries", "nDCG@10"),
        ("kilt", "Rprec(KILT)"),
        ("queries", "nDCG@10"),
        ("mentions", "F1(InKB)"),
        ("queries", "nDCG@10"),
    ]
    assert sets["topics"]["num_missing"] == 1
    qrels = (folder / "five" / "runs" / "topics" / "qrels.txt").read_text()
    assert "52 0 missing:No" in qrels
    assert "51 0 celestial.mercury-planet 0" in qrels
    assert "city.paris 1" in (folder / "five" / "runs" / "asked" / "qrels.txt").read_text()


@pytest.mark.slow
def test_the_program_of_the_evaluation_page_prints_what_it_says(evaluation_folder: Path) -> None:
    ((code, said),) = examples(EVALUATION)
    printed, expected = run(code, evaluation_folder).split(), said.split()
    assert printed[::2] == expected[::2] == ["bm25", "beam"]
    # The last digits of the model's figures differ between machines, and with them one of the 50 queries.
    assert [float(v) for v in printed[1::2]] == pytest.approx([float(v) for v in expected[1::2]], abs=0.021)


HTTP = text_of("docs/http.md")
CONSOLE = blocks(HTTP, "console")
# What depends on the ranking, which is fitted when the index is built.
_FITTED = (
    "score|probability|nothing_fits|names|texts|queries|model|mass_lower_bound|num_nodes|num_scored|"
    "(?:peak|per_branch|saved)_bytes"
)


@pytest.fixture(scope="module")
def http_address(folder: Path) -> Iterator[str]:
    """Where the server of docs/http.md listens, on ports of its own."""
    with ServerProcess("sample.index", "--http-port", "0", cwd=folder) as server:
        yield re.search(r"HTTP on (\S+)", server.said("HTTP on "))[1]
        server.send(signal.SIGTERM)
        assert server.exit_code() == 0


def commands_of(block: str) -> tuple[list[str], str]:
    """Return the commands of a block, and what it says they print."""
    commands: list[str] = []
    printed: list[str] = []
    open_until = ""
    for line in block.splitlines():
        if commands and open_until:
            commands[-1] += f"\n{line}"
            open_until = "" if line == open_until else open_until
        elif line.startswith("$ "):
            commands.append(line[2:])
            heredoc = re.search(r"<<'(\w+)'$", line)
            open_until = heredoc.group(1) if heredoc else ""
        elif commands and commands[-1].endswith("\\"):
            commands[-1] += f"\n{line}"
        else:
            printed.append(line)
    return commands, "\n".join(printed)


def masked(text: str) -> str:
    if text.startswith("{\n"):  # metadata come in any order
        text = json.dumps(json.loads(text), sort_keys=True, indent=2, ensure_ascii=False)
    text = re.sub(r'"(?:[0-9a-f]{32}|…)"', '"DIGEST"', text)
    text = re.sub(rf'"({_FITTED})": "?-?[\d.]+"?', r'"\1": FITTED', text)
    text = re.sub(r"_ms\": .*", "_ms", text)
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number.group()):.3f}", text)


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="needs bash, curl and jq")
@pytest.mark.parametrize("number", range(len(CONSOLE)))
def test_an_example_of_the_http_page_prints_what_it_says(
    number: int, folder: Path, http_address: str
) -> None:
    commands, says = commands_of(CONSOLE[number])
    script = "\n".join(commands).replace("localhost:8080", http_address)
    assert masked(shell(script, folder).rstrip("\n")) == masked(says)
    assert commands
    assert says


PROGRAMS = examples(HTTP)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_http_page_prints_what_it_says(number: int, folder: Path, http_address: str) -> None:
    code, says = PROGRAMS[number]
    assert code.count("localhost:8080") == 1
    assert not differ(run(code.replace("localhost:8080", http_address), folder), says)


def test_the_http_page_has_an_example_for_every_method() -> None:
    for path in re.findall(r"\| `(?:POST|GET) (/v1/\S+)`[, ]", HTTP):
        shown = path.replace("NAME", "sample.index")
        assert shown in "".join(CONSOLE) or path == "/v1/indexes/NAME", path
