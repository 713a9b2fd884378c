"""Every option of a request is on the wire, in commands, in OpenAPI, in the explorer and in the docs."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from genret.retrieval.answers.answer_types import AnswerOptions, AnswerRequest
from genret.retrieval.arguments import INT64, RequestOption, options_of
from genret.retrieval.complete_types import CompleteRequest
from genret.retrieval.linking.link_command import link_command
from genret.retrieval.linking.link_options import LinkOptions
from genret.retrieval.score_types import ScoreRequest
from genret.retrieval.types import (
    Auto,
    Beam,
    Disc,
    MethodOptions,
    RequestOptions,
    RetrieveRequest,
    Shortlist,
    with_options,
)
from genret.service.commands.answer import answer_command
from genret.service.commands.complete import complete_command
from genret.service.commands.query import ask_command, query_command
from genret.service.commands.score import score_command
from genret.service.gateway.http_app import OPENAPI_FILE
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
PAGES = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")))
FORM = (ROOT / "service" / "gateway" / "static" / "index.html").read_text(encoding="utf-8")
SCHEMAS: dict[str, Any] = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))["components"]["schemas"]
COMMANDS = {
    RetrieveRequest: (query_command, ask_command),
    AnswerRequest: (answer_command,),
    ScoreRequest: (score_command,),
    CompleteRequest: (complete_command,),
}
DECLARED = [
    pytest.param(request, option, id=f"{request.__name__}.{name}")
    for request in COMMANDS
    for name, option in options_of(request).items()
]


@pytest.mark.parametrize(("request_type", "option"), DECLARED)
def test_an_option_is_wherever_requests_are(request_type: type, option: RequestOption) -> None:
    message = getattr(pb, request_type.__name__).DESCRIPTOR
    name, _, inner = option.wire.partition(".")
    field = message.fields_by_name[name]
    assert not inner or inner in field.message_type.fields_by_name
    described = SCHEMAS[message.name]["properties"][name]
    if option.type in (int, float) and option.range != INT64:
        assert (described["minimum"], described["maximum"]) == option.range
    for choice in option.choices:
        known = [value.name for value in field.enum_type.values]
        assert any(value.endswith(f"_{choice.upper()}") for value in known), choice
    for command in COMMANDS[request_type]:
        (flag,) = (one for one in command.params if one.name == option.name)
        assert f"--{option.name.replace('_', '-')}" in flag.opts
    assert re.search(rf"`{option.name}`|--{option.name.replace('_', '-')}\b|\b{option.name}=", PAGES)


@pytest.mark.parametrize("option", options_of(RetrieveRequest).values(), ids=lambda option: option.name)
def test_the_explorer_has_the_ranges_of_its_fields(option: RequestOption) -> None:
    if found := re.search(rf'<input id="{option.wire}"[^>]* min="([^"]+)" max="([^"]+)"', FORM):
        assert tuple(map(float, found.groups())) == option.range


@pytest.mark.parametrize(
    ("keywords", "request_type", "others"),
    [
        (RequestOptions, RetrieveRequest, {"k", "method", "prompt"}),
        (AnswerOptions, AnswerRequest, {"schema_name"}),
    ],
)
def test_keyword_arguments_are_the_options(keywords: Any, request_type: type, others: set[str]) -> None:
    """Others are what methods name themselves, or what is no option."""
    assert keywords.__annotations__.keys() ^ options_of(request_type).keys() == others


@pytest.mark.parametrize("kind", [Beam, Disc, Shortlist, Auto])
def test_the_object_of_a_method_has_its_options(kind: type[MethodOptions]) -> None:
    """With the same defaults; and every option that one method alone takes is in its object."""
    options, method = options_of(RetrieveRequest), kind.__name__.lower()
    own = {one.name: one.default for one in fields(cast(Any, kind))}
    assert own == {name: options[name].default for name in own}
    assert {name for name, option in options.items() if method in option.methods} <= own.keys()
    said = {name for name, option in options.items() if option.help.startswith(method)}
    assert said - own.keys() <= {"method"}
    assert with_options(10, kind(), None, {}) == RetrieveRequest("-", method=method)


def test_a_run_of_links_has_a_flag_for_every_option_that_it_takes() -> None:
    taken = options_of(RetrieveRequest).keys() & LinkOptions.__annotations__.keys()
    assert len(taken) > 10
    assert taken <= {parameter.name for parameter in link_command.params}
