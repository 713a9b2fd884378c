"""What pages say of the code is so: tables, figures, commands, settings, logs.

Pages are docs/{json-answers,evaluation,shortlists,numbers,operations}.md; of the README its commands.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator

import click
import pytest

from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.schema import keywords
from genret.retrieval.answers.answer_types import ANSWER_METHODS
from genret.retrieval.answers.schema_explanation import explain
from genret.retrieval.evaluation.datasets.labels import SET_FORMATS
from genret.retrieval.evaluation.methods.evaluated_method import METHOD_FORMS
from genret.retrieval.evaluation.metrics import DEFAULT_METRICS, MICRO_METRICS, RATES, check_metrics
from genret.retrieval.methods.scored_methods import MAX_SCORED_FORMS
from genret.retrieval.score_types import MAX_SCORED_TITLES
from genret.retrieval.types import DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE
from genret.retrieval.vectors.faiss_index import FLAT_BELOW, MAX_CELLS
from genret.retrieval.vectors.vector_maker import TARGET_RECALL
from genret.service.commands.serve import serve_command
from genret.service.configuration.settings import SETTINGS
from genret.service.main import COMMANDS, cli
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.e2e.pages import ROOT, blocks, code, examples, rows, run, run_command, section, text_of
from tests.service.full_metrics import families

ANSWERS = "docs/json-answers.md"
DRAFTS = (keywords.UNDECLARED, keywords.DRAFT_2020_12, keywords.DRAFT_2019_09)
DRAFTS += (keywords.DRAFT_7, keywords.DRAFT_6, keywords.DRAFT_4)


def test_the_table_of_keywords_is_that_of_the_code() -> None:
    table = rows(section(ANSWERS, "Keywords"))
    written = {name: role for cell, role, _ in table for name in code(cell)}
    assert written == {name: keyword.role for draft in DRAFTS for name, keyword in draft.items()}
    assert len(written) == sum(len(code(cell)) for cell, *_ in table), "a keyword stands twice"


def test_the_table_of_formats_is_that_of_the_code() -> None:
    exactly, in_part = (code(cell) for cell, _ in rows(section(ANSWERS, "Formats")))
    assert set(exactly) == {name for name, how in FORMATS.items() if how is Enforcement.EXACT}
    assert set(in_part) == {name for name, how in FORMATS.items() if how is Enforcement.SUBSET}


def test_methods_and_limits_of_json_answers_are_those_of_the_code() -> None:
    assert tuple(code(cell)[0] for cell, *_ in rows(section(ANSWERS, "Methods"))) == ANSWER_METHODS
    limits = CompileLimits()
    assert (limits.schema_bytes, limits.depth) == (1 << 20, 128)
    assert (limits.nodes, limits.automaton_states, limits.seconds) == (50_000, 50_000, 2.0)
    flat = " ".join(text_of(ANSWERS).split())
    assert "at most 1 MiB and 128 levels" in flat
    assert "50,000 values and containers, an automaton to 50,000 states" in flat
    assert "take 2 seconds" in flat


def test_schemas_of_the_page_can_be_used_and_are_explained_as_it_says() -> None:
    schemas = blocks(text_of(ANSWERS), "json")
    assert len(schemas) == 2
    for schema in schemas:
        json.loads(schema)
        assert explain(schema, GrammarOptions.for_writing()).refusal == ""
    (said,) = re.findall(r"--explain-schema\n(.*?)```", text_of(ANSWERS), re.DOTALL)
    assert said.rstrip("\n") == explain(schemas[0], GrammarOptions.for_writing()).lines()


def test_the_grammar_by_hand_prints_what_the_page_says() -> None:
    ((program, printed),) = [pair for pair in examples(text_of(ANSWERS)) if "compile_schema" in pair[0]]
    assert run(program, ROOT) == printed


def test_the_grammar_engine_alone_does_what_its_readme_says_without_torch() -> None:
    ((program, printed),) = examples(text_of("decoding/grammar/README.md"))
    assert run(f"{program}\nimport sys\nassert 'torch' not in sys.modules", ROOT) == printed


TITLE = {"type": "string", "x-genret-index": "titles"}
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({**TITLE, "type": ["string", "null"]}, ""),
        ({**TITLE, "minLength": 3}, "cannot be combined"),
        ({"propertyNames": TITLE}, "keys cannot be taken"),
        ({"type": "string", "x-genret-filter": "a = 1"}, "expected x-genret-index beside it"),
        ({**UNIQUE, "minItems": 64}, ""),
        ({**UNIQUE, "minItems": 65}, "more than 64"),
        ({**UNIQUE, "items": {"type": "object"}}, "cannot be compared"),
        ({"type": "string", "pattern": r"(a)\1"}, "back-reference"),
        ({"type": "string", "pattern": "{,3}"}, "not all read alike"),
        ({"type": "number", "multipleOf": 0.0001}, ""),
        ({"type": "number", "multipleOf": 0.0001234567}, "more than 50,000 states"),
        ({"type": "string", "format": "a-format-of-ours"}, ""),
    ],
)
def test_what_the_page_calls_refused_is_refused_and_nothing_else(schema: object, words: str) -> None:
    # With time enough for a machine that does other things as well.
    options = GrammarOptions.for_writing(CompileLimits(seconds=60.0))
    refusal = explain(json.dumps(schema), options).refusal
    assert words in refusal
    assert bool(refusal) == bool(words)


EVALUATION = text_of("docs/evaluation.md")


def first_column(heading: str) -> list[str]:
    """Return the code in the first cells of a section's tables in docs/evaluation.md."""
    text = EVALUATION.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [name for row in rows(text) if row[0].startswith("`") for name in code(row[0])]


def test_the_table_of_labelled_sets_is_that_of_the_code() -> None:
    text = EVALUATION.split("\n## Labelled sets\n")[1].split("A small example")[0]
    table = [row for row in rows(text) if row[0].startswith("`")]
    assert [row[0].strip("`") for row in table] == list(SET_FORMATS)
    for name, _, _, leading in table:
        metrics = DEFAULT_METRICS.get(name.strip("`"), DEFAULT_METRICS["queries"])
        assert leading.strip("`") == metrics[0]


def test_the_tables_of_methods_and_metrics_are_those_of_the_code() -> None:
    assert first_column("Methods") == list(METHOD_FORMS)
    assert f"N = {DEFAULT_SHORTLIST_SIZE}" in EVALUATION
    names = first_column("Metrics")
    check_metrics(names)
    default = {name for names in DEFAULT_METRICS.values() for name in names}
    assert default | set(MICRO_METRICS) | set(RATES) <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "text",
    [
        f"`shortlist_size` entities ({DEFAULT_SHORTLIST_SIZE}; at most {MAX_SHORTLIST_SIZE:,})",
        f"{MAX_SCORED_FORMS:,} names scored",
        f"Any titles, up to {MAX_SCORED_TITLES:,},",
        f"below {FLAT_BELOW:,} texts",
        f"in at most {MAX_CELLS:,} cells",
        f"{TARGET_RECALL:.0%}".replace("%", " %") + " of the known items first",
    ],
)
def test_the_page_of_shortlists_has_the_figures_of_the_code(text: str) -> None:
    assert text in text_of("docs/shortlists.md")


def test_the_page_of_numbers_has_every_field_of_a_reply() -> None:
    named = set(code(section("docs/numbers.md", "The fields of a reply")))
    for message in (pb.Candidate, pb.RetrieveResponse):
        assert {*message.DESCRIPTOR.fields_by_name} - {"candidates"} <= named


OPERATIONS = text_of("docs/operations.md")
# Prose in the order of the page, and blocks of commands apart from it.
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", OPERATIONS, flags=re.DOTALL))
BLOCKS = blocks(OPERATIONS + text_of("README.md"), r"\w*")
LINES = [line.removeprefix("$ ") for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]


def commands() -> Iterator[list[str]]:
    """Every command that a reader may copy, in blocks, in prose and in tables."""
    for text in (*LINES, *CODE):
        if text.startswith(("genret ", "python benchmarks/", "benchmarks/")) and " " in text:
            yield shlex.split(text.removeprefix("python ").partition(" | ")[0], comments=True)


def named(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words begin with, and what is given to it."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command {' '.join(words[:2])}"
        command, rest = found, rest[1:]
    return command, rest


def flags_of(command: click.Command) -> set[str]:
    return {
        flag for option in command.params for flag in (*option.opts, *option.secondary_opts) if flag[0] == "-"
    }


def test_commands_of_genret_and_their_flags_are_there() -> None:
    checked = [words for words in commands() if words[0] == "genret"]
    assert len(checked) > 12
    for words in checked:
        command, rest = named(words)
        missing = {word for word in rest if word.startswith("--")} - flags_of(command)
        assert not missing, f"{' '.join(words)}: {command.name} has no {missing}"


@pytest.mark.slow
def test_benchmarks_and_their_flags_are_there() -> None:
    checked = [words for words in commands() if words[0].startswith("benchmarks/")]
    assert {words[0] for words in checked} >= {"benchmarks/service_load.py", "benchmarks/service_memory.py"}
    for script in {words[0] for words in checked}:
        told = run_command([sys.executable, script, "--help"], ROOT)
        for words in checked:
            own = words[: words.index("--")] if "--" in words else words
            passed_on = words[len(own) :]
            if words[0] == script:
                assert all(word in told for word in own if word.startswith("--")), words
            flags = {word for word in passed_on if word.startswith("--") and word != "--"}
            assert flags <= flags_of(serve_command)


def test_lonely_flags_are_of_a_command() -> None:
    known = {flag for name in COMMANDS for flag in flags_of(named(["genret", name])[0])}
    foreign = {"--", "--stop-timeout", "--inplace"}  # of shells, docker and rsync
    flags = {text.split()[0] for text in CODE if text.startswith("--")}
    assert flags
    assert flags - foreign <= known


def test_settings_metrics_and_alerts_are_there() -> None:
    keys = {".".join(setting.key) for setting in SETTINGS}
    sections = {setting.key[0] for setting in SETTINGS}
    dotted = {text for text in CODE if re.fullmatch(r"[a-z]+(\.[a-zA-Z_]+)+", text)}
    found = {text for text in dotted if text.split(".")[0] in sections}
    assert len(found) > 10
    assert {key.replace("models.NAME.", "models.default.") for key in found} - keys == set()
    metrics = {text for text in CODE if text.startswith("genret_")}
    assert len(metrics) > 6
    assert metrics <= set(asyncio.run(families()))
    rules = (ROOT / "deploy" / "alerts.yaml").read_text(encoding="utf-8")
    severities = dict(re.findall(r"- alert: (\w+)\n.*?severity: (\w+)\n", rules, re.DOTALL))
    assert {text for text in CODE if re.fullmatch(r"Genret[A-Z]\w+", text)} <= set(severities)
    told = {code(name)[0]: severity for name, severity, *_ in rows(OPERATIONS) if name.startswith("`Genret")}
    assert told.items() <= severities.items()
    assert {name for name, severity in severities.items() if severity == "page"} <= set(told)


def test_what_logs_are_said_to_say_is_said_somewhere() -> None:
    table = OPERATIONS[OPERATIONS.index("## What goes wrong") : OPERATIONS.index("## Back up")]
    said = [text for row in rows(table) for cell in row[2:3] for text in code(cell) if " " in text]
    assert len(said) >= 9
    sources = " ".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for room in ("service", "retrieval", "decoding")
        for path in (ROOT / room).rglob("*.py")
    )
    for text in said:
        # What a watched file is called stands apart from what is said of it.
        text = re.sub(r"^(the TLS certificate|the token file) ", r"\1…", text)
        for piece in filter(None, (piece.strip(" ,;:") for piece in text.split("…"))):
            if piece != "Address already in use":  # the system's own words
                assert piece in sources, f"{text!r}: nothing says {piece!r}"
