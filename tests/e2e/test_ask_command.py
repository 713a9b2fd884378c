"""`genret ask`: an index answers without a server, with a model and by its evidence alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from genret.retrieval.errors import EvidenceMissingError
from genret.retrieval.ranking.evidence_search import EvidenceSearch
from genret.retrieval.types import RetrieveRequest
from genret.service.main import cli
from tests.commands import json_of, refusal, run, succeed
from tests.service.changing_index import ChangingIndex


@pytest.fixture
def index(tiny_index: Path) -> Path:
    return tiny_index


@pytest.fixture(scope="module")
def bare(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index without evidence."""
    return ChangingIndex(tmp_path_factory.mktemp("bare"), checkpoint, evidence=None).path


ask, refused = partial(succeed, cli, "ask"), partial(refusal, cli, "ask")


def titles(result: Result) -> list[str]:
    return [line.split("\t")[3] for line in result.stdout.splitlines()]


def test_an_index_answers_by_a_model_as_a_server_would(index: Path, checkpoint: Path) -> None:
    asked = (index, "hamlett", "metal", "--model", checkpoint, "--device", "cpu")
    said = ask(*asked, "-k", "2", "--seed", "1", "--json")
    assert "--seed has no effect: only disc draws" in said.stderr
    first, second = map(json.loads, said.stdout.splitlines())
    assert (first["query"], second["query"], first["method"]) == ("hamlett", "metal", "auto")
    assert first["candidates"][0]["title"] == "Hamlet"
    assert first["candidates"][0]["logprob"] < 0
    assert "model" in first["candidates"][0]["shares"]
    assert 0 <= first["nothing_fits"] <= 1
    assert first["index"]["name"] == index.name
    assert first["index"]["version"] == (index / "CURRENT").read_text().strip()
    assert json_of(cli, "ask", index, "metal", *asked[3:], "--method=disc", "--seed=3", "--json")["seed"] == 3


def test_a_prefix_that_nothing_completes_is_said_beside_the_lines(index: Path) -> None:
    said = succeed(cli, "complete", index, "qqqqqq")
    assert (said.stdout, said.stderr) == ("", "no match: 'qqqqqq'\n")
    assert json_of(cli, "complete", index, "qqqqqq", "--json")["completions"] == []


def test_evidence_alone_answers_without_a_log_probability(index: Path) -> None:
    document = json_of(cli, "ask", index, "hamlett", "--no-model", "-k", "2", "--json")
    best = document["candidates"][0]
    assert (best["title"], best["logprob"]) == ("Hamlet", None)
    assert sum(best["shares"].values()) == pytest.approx(best["score"])
    total = sum(c["probability"] for c in document["candidates"]) + document["nothing_fits"]
    assert 0 < total <= 1 + 1e-9
    assert (document["num_scored"], document["num_nodes"]) == (0, 0)


def test_evidence_alone_loads_nothing_that_takes_long(index: Path) -> None:
    code = (
        "import sys; from genret.service.main import cli\n"
        f"cli(['ask', {str(index)!r}, 'hamlett', '--no-model', '-k', '1'], standalone_mode=False)\n"
        "sys.exit(str({'torch', 'transformers', 'numba', 'pandas', 'grpc'} & set(sys.modules) or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\t")[3] == "Hamlet"


def test_filters_ids_and_k_are_honoured(index: Path, tmp_path: Path) -> None:
    asked = (index, "the amazon in paris", "--no-model")
    every = titles(ask(*asked))
    assert {"Amazon", "Paris"} <= set(every)
    cities = titles(ask(*asked, "--filter", "kind = 'city'"))
    assert (cities[0], set(cities) - {"Paris", "Paris, Texas", "Berlin"}) == ("Paris", set())
    assert titles(ask(*asked, "-k", "1")) == every[:1]
    first, second, *_ = json_of(cli, "ask", *asked, "--json")["candidates"]
    ids = tmp_path / "ids.txt"
    ids.write_text(first["entity_id"] + "\n")
    assert titles(ask(*asked, "--deny-ids", ids))[0] == second["title"]
    assert titles(ask(*asked, "--allow-ids", ids)) == [first["title"]]
    lost = refused(*asked, "--allow-ids", "nowhere.txt", code=1)
    assert "nowhere.txt: cannot be read: No such file or directory" in lost


def test_queries_come_from_standard_input(index: Path) -> None:
    done = ask(index, "-", "--no-model", "-k", "1", stdin="hamlett\n\nmacbet\n")
    assert titles(done) == ["Hamlet", "Macbeth"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("x", "--no-model", "--method", "beam"), "--method: must be auto without a model, got 'beam'"),
        (("x", "--no-model", "--exact"), "--exact: needs a model"),
        (("x", "--no-model", "--explain"), "--explain: needs a model"),
        (("x", "-k", "0"), "-k: "),
        ((), 'what is the query? genret ask INDEX "author of hamlet"'),
        ((" ",), "query: must not be empty"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_loaded(options: tuple[str, ...], said: str) -> None:
    assert said in refused("nowhere", *options)


def test_what_cannot_be_asked_is_told_in_a_line(index: Path, bare: Path, tmp_path: Path) -> None:
    lost = refused(tmp_path / "none", "x", "--no-model", code=1)
    assert lost == f"Error: {tmp_path / 'none'}: no such directory"
    plain = refused(bare, "x", "--no-model", code=1)
    assert plain.endswith("add some with: genret update INDEX --evidence all")
    odd = run(cli, "ask", index, "hamlett", "--no-model", "--filter", "knd = 'city'", "--json")
    assert odd.exit_code == 1
    assert json.loads(odd.stdout)["error"]["code"] == "INVALID_ARGUMENT"
    assert "unknown column 'knd'" in odd.stderr
    assert "Traceback" not in odd.output


def test_damaged_evidence_is_named(checkpoint: Path, tmp_path: Path) -> None:
    index = ChangingIndex(tmp_path, checkpoint)
    index.damage("names.arrow")
    said = refused(index.path, "hamlett", "--no-model", code=1)
    assert "names.arrow" in said.splitlines()[-1]


def test_the_library_searches_evidence_as_the_command_does(index: Path, bare: Path) -> None:
    with EvidenceSearch.open(index) as search:
        (result,) = search.retrieve_batch([RetrieveRequest("hamlett", k=1)])
        assert not isinstance(result, Exception)
        assert result.candidates[0].title == "Hamlet"
        assert math.isnan(result.candidates[0].logprob)
        (refused,) = search.retrieve_batch([RetrieveRequest("hamlett", method="beam")])
        assert isinstance(refused, Exception)
    with pytest.raises(EvidenceMissingError):
        EvidenceSearch.open(bare)
