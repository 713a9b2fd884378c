"""Runs of methods on sets: their order and seeds, and their files, which other tools read."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.index_entities import EntityFinder
from genret.retrieval.evaluation.datasets.labels import decode_token, encode_token
from genret.retrieval.evaluation.evaluation import EvaluationPlan
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, MethodRun, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.method_runner import AnswerOutsideIndexError, plan_tasks, run_tasks
from genret.retrieval.evaluation.metrics import measure
from genret.retrieval.evaluation.run_files import (
    Identity,
    RunStore,
    falling_scores,
    read_rankings,
    read_run,
    write_qrels,
    write_run,
)
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import make_index, train_tokenizer
from tests.evaluation_sets import labelled_set, mention_set, query_set, random_case, run_of, write_lines

IDENTITY = Identity("i1", "m1", "float32", 10, 64, None, {"asked": "d1"})
ASKED = query_set()


def make_run(method: str = "disc:2", seed: int | None = 3) -> MethodRun:
    plays = (RankedEntity("Q1", "Hamlet  ß\n", 0.1 + 0.2, -1e-300), RankedEntity("Q1", "Hamlet", -math.inf))
    rankings = [RankedAnswers(query.query_id, plays, 0.5) for query in ASKED.queries]
    rankings[1] = RankedAnswers("q2", (), 0.25, "query: must not be empty")
    rankings[2] = RankedAnswers("q3", (RankedEntity("invalid:a b\tü", "a b\tü", 1.0),))
    return MethodRun(method, ASKED.name, tuple(rankings), 12.5, seed, False)


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY)
    assert store.load(ASKED, "disc:2", 3) is None
    store.save(ASKED, make_run())
    again = RunStore(tmp_path / "out", IDENTITY)
    assert again.load(ASKED, "disc:2", 3) == make_run()
    assert again.load(ASKED, "disc:2", 4) is None
    assert again.load(ASKED, "disc:3", 3) is None
    written = {file.suffix: file for file in (tmp_path / "out" / "runs" / "asked").iterdir()}
    assert sorted(written) == [".json", ".jsonl", ".run", ".txt"]
    written[".json"].unlink()  # without its last file a run is not done
    assert again.load(ASKED, "disc:2", 3) is None


def test_methods_share_no_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY)
    names = ["disc:1", "disc:1/2", "disc:1x2", "disc:12", "beam", "beam:1"]
    names += ["run:a/b.run", "run:a-b.run", "run:a b.run", "run:" + "x" * 300, "run:" + "x" * 301]
    for number, name in enumerate(names):
        store.save(ASKED, replace(make_run(name, None), seconds=float(number + 1)))
    for number, name in enumerate(names):
        loaded = store.load(ASKED, name, None)
        assert (loaded.seconds, loaded.method) == (number + 1, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": "i2"}, "index: was i1, is i2"),
        ({"model": "m2"}, "model: was m1, is m2"),
        ({"dtype": "bfloat16"}, "dtype: was float32, is bfloat16"),
        ({"k": 5}, "k: was 10, is 5"),
        ({"batch_size": 1}, "batch size: was 64, is 1"),
        ({"redirects": "r"}, "redirects: was None, is r"),
        ({"sets": {"asked": "d2"}}, "set asked: was d1, is d2"),
    ],
)
def test_something_else_is_not_gone_on_with(tmp_path: Path, change: dict[str, object], message: str) -> None:
    RunStore(tmp_path / "out", IDENTITY)
    with pytest.raises(SourceError, match=message):
        RunStore(tmp_path / "out", replace(IDENTITY, **change))  # type: ignore[arg-type]
    RunStore(tmp_path / "out", IDENTITY)  # what was refused changed nothing
    RunStore(tmp_path / "out", replace(IDENTITY, sets={"other": "d9"}))  # sets may come to it
    with pytest.raises(SourceError, match=message):
        RunStore(tmp_path / "out", replace(IDENTITY, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 9}', '{"format": 1, "odd": 2}'])
def test_a_foreign_identity_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(SourceError, match=r"evaluation.json: not written by this command"):
        RunStore(tmp_path, IDENTITY)


def test_a_broken_run_is_refused_by_name(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY)
    store.save(ASKED, make_run())
    folder = tmp_path / "out" / "runs" / "asked"
    lines = (folder / "disc-2.seed3.jsonl").read_text().splitlines(keepends=True)
    (folder / "disc-2.seed3.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(SourceError, match=r"disc-2.seed3.*jsonl: not the queries of the set asked"):
        store.load(ASKED, "disc:2", 3)
    (folder / "disc-2.seed3.json").write_text("{}")
    with pytest.raises(SourceError, match=r"disc-2.seed3.json: not written by this command"):
        store.load(ASKED, "disc:2", 3)


NAMES = ("nDCG@10", "RR", "RR@10", "Success@1", "R@10", "Rprec", "AP")
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_pytrec_eval_says_the_same_of_what_is_written(tmp_path: Path, seed: int) -> None:
    names = {"nDCG@10": "ndcg_cut_10", "RR": "recip_rank", "AP": "map", "Rprec": "Rprec"}
    names |= {"nDCG": "ndcg", "R@10": "recall_10", "Success@5": "success_5"}
    labelled, run = random_case(seed)
    write_run(tmp_path / "run.txt", labelled, run)
    write_qrels(tmp_path / "qrels.txt", labelled)
    with (tmp_path / "run.txt").open() as runs, (tmp_path / "qrels.txt").open() as qrels:
        theirs = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), set(names.values())).evaluate(
            pytrec_eval.parse_run(runs)
        )
    for found in measure(labelled, run, list(names)):
        for query, value in zip(labelled.queries, found.per_query, strict=True):
            expected = theirs.get(query.query_id, {}).get(names[found.name], 0.0)
            assert value == pytest.approx(expected, abs=1e-9)
    read = {query: [e.entity_id for e in found] for query, found in read_run(tmp_path / "run.txt").items()}
    assert read == {r.query_id: [e.entity_id for e in r.entities] for r in run.rankings if r.entities}


def test_ir_measures_says_the_same_of_odd_ids_and_namesakes(tmp_path: Path) -> None:
    queries = [
        LabelledQuery("a query", "t", gold={"New York": 2, "missing:x": 1}, namesakes={"NYC 2": "New York"}),
        LabelledQuery("100%20", "t", gold={"é\u2003%41": 1}),
    ]
    labelled = labelled_set(queries)
    run = run_of(labelled, [["x y", "NYC 2", "New York"], ["z", "é\u2003%41"]], method="a b")
    write_run(tmp_path / "run.txt", labelled, run)
    write_qrels(tmp_path / "qrels.txt", labelled)
    measures = [ir_measures.parse_measure(name) for name in NAMES]
    theirs = ir_measures.calc_aggregate(
        measures,
        list(ir_measures.read_trec_qrels(str(tmp_path / "qrels.txt"))),
        list(ir_measures.read_trec_run(str(tmp_path / "run.txt"))),
    )
    for found, parsed in zip(measure(labelled, run, NAMES), measures, strict=True):
        assert found.value == pytest.approx(theirs[parsed], abs=1e-9)
    assert (tmp_path / "run.txt").read_text().splitlines()[0] == "a%20query Q0 x%20y 1 0.000000 a%20b"
    found_again = read_run(tmp_path / "run.txt")
    assert {q: [e.entity_id for e in names] for q, names in found_again.items()} == {
        "a query": ["x y", "New York"],
        "100%20": ["z", "é\u2003%41"],
    }


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    labelled, run = random_case(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"file/run.txt: cannot be written: (File exists|Not a directory)"):
        write_run(tmp_path / "file" / "run.txt", labelled, run)


@given(_TEXT)
def test_a_token_gives_its_text_back_and_holds_no_white_space(text: str) -> None:
    token = encode_token(text)
    assert decode_token(token) == text
    assert len(token.split()) == 1
    assert token == text or any(c.isspace() or not c.isprintable() or c == "%" for c in text)


def test_percent_signs_of_others_stay() -> None:
    assert decode_token("50%") == "50%"
    assert decode_token("50%FF") == "50%FF"


@given(st.lists(st.floats(width=64), max_size=30))
def test_written_scores_fall_strictly_as_32_bit_floats(scores: list[float]) -> None:
    texts = falling_scores(scores)
    assert len(texts) == len(scores)
    written = np.array([float(text) for text in texts], dtype=np.float32)
    assert np.isfinite(written).all()
    assert (np.diff(written) < 0).all()
    assert all(text.partition(".")[2].isdigit() and len(text.partition(".")[2]) == 6 for text in texts)


def test_scores_that_fall_are_written_as_they_are() -> None:
    assert falling_scores([3.5, 1.25, -0.000001]) == ["3.500000", "1.250000", "-0.000001"]
    assert falling_scores([1.0, 1.0, 2.0, -math.inf]) == ["1.000000", "0.999999", "0.999998", "0.999997"]


def test_a_run_of_others_is_ordered_as_trec_eval_does(tmp_path: Path) -> None:
    random_ = random.Random(3)
    rows = {f"d{i}": float(random_.randrange(3)) for i in range(20)}
    lines = [f"q Q0 {name} {i} {score} tag" for i, (name, score) in enumerate(rows.items())]
    found = [e.entity_id for e in read_run(write_lines(tmp_path / "run.txt.gz", lines))["q"]]
    for place, name in enumerate(found, 1):
        evaluator = pytrec_eval.RelevanceEvaluator({"q": {name: 1}}, {"recip_rank"})
        assert evaluator.evaluate({"q": rows})["q"]["recip_rank"] == pytest.approx(1 / place)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("q Q0 d 1 1.0", ": expected 6 fields: query, Q0, document, rank, score, tag, got 5"),
        ("q Q0 d one 1.0 t", ", field 'rank': expected an integer from 0, got 'one'"),
        (f"q Q0 d {'x' * 99} 1 t", f", field 'rank': expected an integer from 0, got '{'x' * 79}…"),
        ("q Q0 d 2 high t", ", field 'score': expected a finite number, got 'high'"),
        ("q Q0 d 2 nan t", ", field 'score': expected a finite number, got 'nan'"),
        ("q Q0 a 2 0.5 t", ", field 'document': expected each once for the query q, got 'a'"),
    ],
)
def test_malformed_runs_are_refused(tmp_path: Path, row: str, message: str) -> None:
    file = write_lines(tmp_path / "answers", ["q Q0 a 1 1.0 t", row])
    with pytest.raises(SourceError, match=f"^{re.escape(f'{file}, line 2{message}')}$"):
        read_run(file)


@pytest.mark.parametrize("entities", [None, [1], [{"score": 1.0}]])
def test_rankings_of_another_form_are_refused(tmp_path: Path, entities: object) -> None:
    file = write_lines(tmp_path / "answers", [{"query_id": "q", "entities": entities}])
    with pytest.raises(SourceError, match="answers, line 1: not written by this command"):
        read_rankings(file)


def test_only_ascii_white_space_separates_the_fields_of_others(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "run.txt", ["q\u00a01\tQ0 d\u2003e  1 2.5e-1\ttag"])
    assert read_run(file) == {"q\u00a01": (RankedEntity("d\u2003e", "d\u2003e", 0.25),)}


SETS = (query_set(), mention_set())


@dataclass
class ScriptedMethod:
    """Answers one entity to everything, and writes down what it was asked."""

    name: str
    entity_id: str = "Q1"
    is_constrained: bool = True
    is_random: bool = False
    calls: list[tuple[int, int]] = field(default_factory=list)

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[RankedAnswers]:
        self.calls.append((len(queries), seed))
        report(len(queries))
        entities = (RankedEntity(self.entity_id, "title", 1.0),)
        return [RankedAnswers(query.query_id, entities, 0.001) for query in queries]


@pytest.fixture(scope="module")
def titles(tmp_path_factory: pytest.TempPathFactory) -> EntityFinder:
    tokenizer = TextTokenizer(train_tokenizer(), "</s>", "trained")
    return EntityFinder(Index.open(make_index(tmp_path_factory.mktemp("runner"), tokenizer)))


def no_report(*_: object) -> None: ...


def test_every_method_answers_every_set_with_every_seed(titles: EntityFinder, tmp_path: Path) -> None:
    fixed, drawn = ScriptedMethod("beam"), ScriptedMethod("disc:1", is_random=True)
    tasks = plan_tasks(SETS, [fixed, drawn], [4, 5])
    reports: list[tuple[object, ...]] = []
    runs = run_tasks(tasks, RunStore(tmp_path / "o", IDENTITY), titles, lambda *told: reports.append(told), 2)
    passes = [("beam", None), ("disc:1", 4), ("disc:1", 5)]
    expected = [(name, *one) for name in ("asked", "marked") for one in passes]
    assert [(run.set_name, run.method, run.seed) for run in runs] == expected
    assert fixed.calls == [(2, 0), (6, 0), (4, 0)]  # warmed up once
    assert drawn.calls == [(2, 4), (6, 4), (6, 5), (4, 4), (4, 5)]
    assert [len(run.rankings) for run in runs] == [6, 6, 6, 4, 4, 4]
    assert all(run.seconds > 0 for run in runs)
    assert [told[1:3] for told in reports[:2]] == [(1, 0), (1, 6)]


def test_what_is_done_is_not_done_again(titles: EntityFinder, tmp_path: Path) -> None:
    class Stopped(ScriptedMethod):
        def answer(self, *_: object) -> list[RankedAnswers]:
            raise KeyboardInterrupt

    first = ScriptedMethod("beam")
    tasks, store = plan_tasks(SETS, [first, Stopped("exact")], [0]), RunStore(tmp_path / "o", IDENTITY)
    with pytest.raises(KeyboardInterrupt):
        run_tasks(tasks, store, titles, no_report, 2)
    again, second = ScriptedMethod("beam", "Q2"), ScriptedMethod("exact", "Q3")
    store = RunStore(tmp_path / "o", IDENTITY)
    runs = run_tasks(plan_tasks(SETS, [again, second], [0]), store, titles, no_report, 2)
    answers = {(run.set_name, run.method): run.rankings[0].entities[0].entity_id for run in runs}
    assert answers == {
        ("asked", "beam"): "Q1",
        ("asked", "exact"): "Q3",
        ("marked", "beam"): "Q2",
        ("marked", "exact"): "Q3",
    }


@pytest.mark.parametrize("entity_id", ["invalid:Atlantis", "Q99"])
def test_constrained_answers_must_be_in_the_index(
    titles: EntityFinder, tmp_path: Path, entity_id: str
) -> None:
    tasks = plan_tasks(SETS[:1], [ScriptedMethod("trie", entity_id)], [0])
    for _ in range(2):  # nor may it be read back
        store = RunStore(tmp_path / "o", IDENTITY)
        with pytest.raises(AnswerOutsideIndexError, match="trie on asked, query q1: answered 'title'"):
            run_tasks(tasks, store, titles, no_report, 2)
    free = plan_tasks(SETS[:1], [ScriptedMethod("unconstrained", entity_id, is_constrained=False)], [0])
    (run,) = run_tasks(free, RunStore(tmp_path / "o", IDENTITY), titles, no_report, 2)
    assert run.rankings[0].entities[0].entity_id == entity_id


def test_a_plan_without_a_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give at least one set"):
        EvaluationPlan(sets=(), methods=("trie",), out=tmp_path).check()
