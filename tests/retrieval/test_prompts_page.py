"""docs/prompts.md, the JSON Schema of genret.json and the code say the same."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from retrieval.prompts import (
    BUILT_IN,
    CHAT_PROMPTS,
    CONFIG_VERSION,
    SCHEMA_FILE,
    CheckpointConfig,
    NameEvidence,
    PromptTemplate,
)
from retrieval.text import Rendering

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
SCHEMA: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
PARTS: dict[str, tuple[dict[str, Any], type, set[str]]] = {
    # The schema of a part, the class that holds it, and fields of the class that are not in the file.
    "file": (SCHEMA["properties"], CheckpointConfig, {"chat"}),
    "prompt": (SCHEMA["$defs"]["prompt"]["properties"], PromptTemplate, {"name", "schema"}),
    "rendering": (SCHEMA["$defs"]["rendering"]["properties"], Rendering, set()),
    "name_evidence": (SCHEMA["properties"]["name_evidence"]["properties"], NameEvidence, set()),
}
OF_THE_FILE_ALONE = {"$schema", "format_version", "vector_weight"}


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["format_version"]["const"] == CONFIG_VERSION


@pytest.mark.parametrize("part", PARTS)
def test_the_schema_has_the_fields_of_the_code_with_their_defaults(part: str) -> None:
    properties, kind, left_out = PARTS[part]
    assert set(properties) - OF_THE_FILE_ALONE == {one.name for one in fields(kind)} - left_out
    for one in fields(kind):
        default = properties.get(one.name, {}).get("default", MISSING)
        if default is not MISSING and one.default is not MISSING:
            assert default == one.default, one.name


@pytest.mark.parametrize("part", PARTS)
def test_the_page_has_a_row_for_every_field(part: str) -> None:
    for name, field in PARTS[part][0].items():
        default = f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else ""
        assert f"\n| `{name}` | {default} | {field['description']} |\n" in PAGE


def test_the_page_names_every_built_in_prompt() -> None:
    for name in (*BUILT_IN, *CHAT_PROMPTS):
        assert f"`{name}`" in PAGE


def test_what_is_saved_follows_the_schema(tmp_path: Path) -> None:
    own = PromptTemplate("own", rendering=Rendering(prefix=" "))
    config = CheckpointConfig(
        prompts={**BUILT_IN, "own": own},
        default_prompt="own",
        annotate_prompt="own",
        rendering=Rendering(end_token="\\n"),
        title_weight=2.0,
        name_evidence=NameEvidence(mention=0.25),
    )
    config.save(tmp_path)
    document = json.loads((tmp_path / "genret.json").read_text())
    Draft202012Validator(SCHEMA).validate(document)
    shipped = Path(__file__).resolve().parents[2] / "data" / "small-model" / "genret.json"
    Draft202012Validator(SCHEMA).validate(json.loads(shipped.read_text()))
