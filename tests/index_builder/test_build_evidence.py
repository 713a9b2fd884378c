"""Builds and updates with evidence by words and letters: made, kept in step, carried over, dropped, told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from genret.index_builder.build import BuildSummary
from genret.index_builder.build_options import (
    BuildOptions,
    EvidenceChange,
    EvidenceOptions,
    VectorBuildOptions,
    VectorChange,
)
from genret.index_builder.cli import build_command, update_command
from genret.index_builder.evidence_maker import carried_over
from genret.index_builder.past_queries import QueryFile
from genret.index_builder.rollback import roll_back
from genret.index_builder.update import UpdateRequest, UpdateSummary, update_index
from genret.retrieval.errors import IndexChecksumError, InputError
from genret.retrieval.evidence import field
from genret.retrieval.evidence.evidence import open_evidence
from genret.retrieval.index.inspect_command import inspect_command, verify_command
from genret.retrieval.index.layout import (
    EVIDENCE_FILES,
    NAMES_FILE,
    QUERIES_FILE,
    RANKING_FILE,
    TEXTS_FILE,
    VECTORS_FILE,
)
from genret.retrieval.index.priors import Prior
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.ranking.rankings import NO_MODEL, Rankings
from genret.retrieval.vectors.embedder import VectorMethod
from tests.commands import json_of, run, succeed
from tests.entity_oracle import EntityOracle, with_weights
from tests.fakes import TableModel
from tests.index_fixtures import (
    build,
    character_tokenizer,
    data_files,
    past_queries_of,
    save_tokenizer,
    version_files,
    write_titles,
)
from tests.vector_fixtures import ENTRY, FILES, as_format, with_file, with_vectors

TOKENIZER = character_tokenizer("abcdefghijklmnopqrstuvwxyz 0123456789")
HEADER = "entity_id\ttitle\taliases\tdescription\tkind"
LINES = [HEADER, "1\tabc\tcab|bad\tfirst one\tx", "2\tabc\t\t\ty", "3\tc\ta\tthird\t", "4\tbcd\t\t\tz"]
QUERY_LINES = ["query\tentity_id\tcount", "what is abc\t1\t3", "abc\t1\t1", "abc\t2\t2", "sea\t4\t1"]
WORDS = ("river", "harbour", "mountain", "castle", "bridge", "garden", "museum", "station", "tower", "island")
MANY = [
    HEADER,
    *(
        f"n{i}\t{a} {b}\t\tof the {b} kind\t{a}"
        for i, (a, b) in enumerate((a, b) for a in WORDS for b in WORDS if a != b)
    ),
]


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    return write_titles(tmp_path / "queries.tsv", QUERY_LINES)


def wish(*files: Path, columns: tuple[str, ...] | None = None) -> EvidenceOptions:
    return EvidenceOptions(columns, tuple(QueryFile(file) for file in files))


def update(index: Path, lines: Sequence[str] = (), **request: Any) -> UpdateSummary:
    add = (write_titles(index.with_name("more.tsv"), [HEADER, *lines]),) if lines else ()
    return update_index(UpdateRequest(add=add, **request), TOKENIZER, BuildOptions(out=index))


def ranking(index: Path) -> Rankings:
    with Index.open(index) as opened:
        return Rankings.read(opened)


def test_a_build_makes_evidence_of_names_and_descriptions(tmp_path: Path) -> None:
    summary = build(tmp_path, LINES, TOKENIZER)
    evidence = summary.manifest.evidence
    assert (evidence.names, evidence.columns, evidence.texts, evidence.queries) == (7, ("description",), 2, 0)
    plain = build(tmp_path, LINES, TOKENIZER, name="plain.index", evidence=None)
    without, files = version_files(plain), version_files(summary)
    assert set(files) - set(without) == {NAMES_FILE, TEXTS_FILE}
    assert all(files[name] == data for name, data in without.items() if name != "manifest.json")
    assert plain.manifest.evidence is None
    assert plain.manifest.history[-1].options["evidence"] == "none"
    assert "evidence" not in summary.manifest.history[-1].options
    facts = summary.to_dict()["evidence"]
    assert facts["columns"] == ["description"]
    assert facts["kinds"]["names"] == {
        "count": 7,
        "bytes": len(files[NAMES_FILE]),
        "bytes_per_title": len(files[NAMES_FILE]) / 4,
    }
    assert verify(summary.index).ok


def test_how_many_characters_are_looked_at_at_once_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(tmp_path, LINES, TOKENIZER)
    monkeypatch.setattr(field, "_CHARACTERS", 5)
    assert build(tmp_path, LINES, TOKENIZER, name="parts.index").version == whole.version


def test_the_columns_asked_for_and_none(tmp_path: Path) -> None:
    summary = build(tmp_path, LINES, TOKENIZER, evidence=wish(columns=("kind", "description")))
    assert summary.manifest.evidence is not None
    evidence = summary.manifest.evidence
    assert (evidence.columns, evidence.texts) == (("kind", "description"), 4)
    bare = build(tmp_path, LINES, TOKENIZER, evidence=wish(columns=()))
    assert bare.manifest.file(TEXTS_FILE) is None
    with pytest.raises(InputError, match=r"evidence_columns: 'colour': there is no such column; .*'kind'"):
        build(tmp_path, LINES, TOKENIZER, evidence=wish(columns=("colour",)))


def test_a_ranking_is_fitted_to_the_catalogue_the_same_every_time(tmp_path: Path, queries: Path) -> None:
    asked = write_titles(tmp_path / "asked.tsv", ["query\tentity_id", "old river\tn1", "the tower\tn9"])
    one, other = (
        build(tmp_path, MANY, TOKENIZER, name=name, evidence=wish(asked)) for name in ("a.index", "b.index")
    )
    assert one.version == other.version
    assert version_files(one) == version_files(other)
    fitted = ranking(one.index).fitted[NO_MODEL]
    told = fitted.provenance
    assert (told.queries, told.kinds) == ("made from the catalogue", ("names", "texts", "queries"))
    assert set(told.metrics) == {"hits@1 before", "hits@1 after"}
    assert verify(one.index).ok


def test_a_tiny_catalogue_goes_without_a_ranking(tmp_path: Path) -> None:
    checkpoint = save_tokenizer(TOKENIZER, tmp_path / "checkpoint")
    titles = write_titles(tmp_path / "titles.tsv", LINES)
    result = succeed(build_command, titles, "--tokenizer", checkpoint)
    assert "a catalogue of 4 is too small to fit a ranking to\n" in result.stderr
    assert "evidence    7 names: " in result.stdout
    assert ranking(tmp_path / "titles.index").fitted == {}


def fresh(folder: Path, lines: Sequence[str], **options: Any) -> BuildSummary:
    return build(folder, lines, TOKENIZER, name="fresh.index", **options)


def test_an_update_keeps_evidence_in_step(tmp_path: Path, queries: Path) -> None:
    summary = build(tmp_path, LINES, TOKENIZER, evidence=wish(queries))
    assert past_queries_of(summary.index) == {
        "1": [("what is abc", 3), ("abc", 1)],
        "2": [("abc", 2)],
        "4": [("sea", 1)],
    }
    more = write_titles(tmp_path / "asked.tsv", ["query\ttitle", "cc\tcc", "abc\tzz"])
    updated = update(
        summary.index,
        ["1\tzz\tcab\tanother\tx", "5\tcc\t\t\tx"],
        remove_ids=("2",),
        evidence=EvidenceChange(queries=(QueryFile(more),)),
    )
    assert updated.fates.evidence == "made"
    assert past_queries_of(summary.index) == {
        "4": [("sea", 1)],
        "5": [("cc", 1)],
        "1": [("what is abc", 3), ("abc", 2)],
    }
    assert verify(summary.index).ok
    assert updated.manifest.history[-1].options["queries"] == ["asked.tsv"]
    assert "asked.tsv" in {source.name for source in updated.manifest.history[-1].sources}
    roll_back(summary.index)
    assert past_queries_of(summary.index)["2"] == [("abc", 2)]


def test_evidence_is_added_made_anew_and_dropped_and_nothing_else_changes(
    tmp_path: Path, queries: Path
) -> None:
    summary = build(tmp_path, LINES, TOKENIZER, evidence=None)
    plain = data_files(summary.index, summary.version)
    absent = update(summary.index, remove_ids=("absent",), ignore_missing=True)
    assert (absent.fates.evidence, absent.version) == ("absent", summary.version)
    for change in (EvidenceChange(queries=(QueryFile(queries),)), EvidenceChange(drop_queries=True)):
        with pytest.raises(InputError, match=r"queries: .* has no evidence; --evidence all makes it"):
            update(summary.index, evidence=change)
    added = update(summary.index, evidence=EvidenceChange(wish(queries)))
    assert added.fates.evidence == "made"
    with_it = data_files(summary.index, added.version)
    assert {name: with_it[name] for name in plain} == plain
    assert set(with_it) - set(plain) == {NAMES_FILE, TEXTS_FILE, QUERIES_FILE}
    other = update(summary.index, evidence=EvidenceChange(wish(columns=("kind",))))
    assert (other.manifest.evidence.columns, other.manifest.evidence.queries) == (("kind",), 4)
    anew = update(summary.index, evidence=EvidenceChange(wish(), drop_queries=True))
    assert (anew.manifest.evidence.columns, anew.manifest.evidence.queries) == (("kind",), 0)
    assert anew.manifest.file(QUERIES_FILE) is None
    dropped = update(summary.index, evidence=EvidenceChange(drop=True))
    assert (dropped.fates.evidence, dropped.manifest.evidence) == ("dropped", None)
    assert data_files(summary.index, dropped.version) == plain
    again = update(summary.index, evidence=EvidenceChange(drop=True))
    assert (again.fates.evidence, again.version) == ("absent", dropped.version)


def test_an_index_of_an_older_format_gets_evidence(tmp_path: Path) -> None:
    summary = build(tmp_path, LINES, TOKENIZER, evidence=None)
    as_format(summary, 5)
    updated = update(summary.index, evidence=EvidenceChange(wish()))
    assert (updated.manifest.format_version, updated.fates.evidence) == (6, "made")
    again = fresh(tmp_path, LINES)
    assert data_files(again.index, again.version) == data_files(summary.index, updated.version)


def test_rankings_stay_until_there_is_other_evidence(tmp_path: Path) -> None:
    summary = build(tmp_path, MANY, TOKENIZER)
    fitted = ranking(summary.index)
    tuned = fitted.with_one("some model", fitted.fitted[NO_MODEL])
    folder = summary.index / "versions" / summary.version
    with_file(summary, folder, RANKING_FILE, tuned.to_bytes())
    kept = update(summary.index, ["x\tgrand hall\t\tof the hall kind\ty"], remove_ids=("n3",))
    assert kept.fates.evidence == "carried over"
    assert ranking(summary.index).to_bytes() == tuned.to_bytes()
    result = succeed(update_command, summary.index, "--evidence", "all", "--evidence-columns", "")
    assert "models must be weighed again, with genret tune" in result.stderr
    anew = ranking(summary.index)
    assert set(anew.fitted) == {NO_MODEL}
    told = anew.fitted[NO_MODEL].provenance
    assert told.kinds == ("names",)
    dropped = update(summary.index, evidence=EvidenceChange(drop=True))
    assert dropped.manifest.file(RANKING_FILE) is None


def test_verify_finds_a_field_that_does_not_fit(tmp_path: Path, queries: Path) -> None:
    lines = [line.replace("abc", "abd").replace("first", "other") for line in LINES]
    more = write_titles(tmp_path / "more.tsv", ["query\tentity_id", *(f"q{i}\t1" for i in range(4))])
    other = version_files(build(tmp_path, lines, TOKENIZER, name="other.index", evidence=wish(more)))
    for name, message in (
        (NAMES_FILE, "block 0 is not what the names of the entities give"),
        (TEXTS_FILE, "block 0 is not what the texts of the entities give"),
        (QUERIES_FILE, None),  # any queries will do: they are kept nowhere else
    ):
        copy = build(tmp_path, LINES, TOKENIZER, name=f"{name}.index", evidence=wish(queries))
        changed = with_file(copy, copy.index / "versions" / copy.version, name, other[name])
        found = [(problem.file, problem.message) for problem in verify(changed).problems]
        assert found == ([] if message is None else [(name, message)])


def test_verify_finds_what_is_no_ranking(tmp_path: Path) -> None:
    summary = build(tmp_path, MANY, TOKENIZER)
    folder = summary.index / "versions" / summary.version
    broken = with_file(summary, folder, RANKING_FILE, b'{"format_version": 1, "rankings": {"": {}}}')
    (problem,) = verify(broken).problems
    assert problem.file == RANKING_FILE
    assert "a ranking is fitted with: genret tune INDEX" in run(verify_command, summary.index).stderr
    assert "problem" in json_of(inspect_command, summary.index, "--json")["ranking"][0]


@pytest.mark.parametrize("name", [NAMES_FILE, TEXTS_FILE, QUERIES_FILE, RANKING_FILE])
def test_a_damaged_file_costs_that_evidence_alone(tmp_path: Path, name: str) -> None:
    asked = write_titles(tmp_path / "asked.tsv", ["query\tentity_id", "river\tn1", "tower\tn2"])
    summary = build(tmp_path, MANY, TOKENIZER, evidence=wish(asked))
    file = summary.index / "versions" / summary.version / name
    sound = file.read_bytes()
    random = Random(0)
    for at in [0, len(sound) - 1, *(random.randrange(len(sound)) for _ in range(5))]:
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 0x41]) + sound[at + 1 :])
        assert [problem.file for problem in verify(summary.index).problems] == [name]
    with Index.open(summary.index) as index:
        assert set(index.evidence_problems) == {name}
        evidence = open_evidence(index)
        kinds = {"names", "texts", "queries"} - {name.removesuffix(".arrow")}
        assert set(evidence.kinds) == kinds
        (asked_one,) = evidence.ask(["river castle"])
        assert len(evidence.propose(asked_one, 5))
    assert name in succeed(inspect_command, summary.index).stdout
    if name == QUERIES_FILE:
        with pytest.raises(IndexChecksumError, match=r"queries\.arrow: .*--queries none drops them"):
            update(summary.index, remove_ids=("n1",))
        change = EvidenceChange(drop_queries=True)
        assert update(summary.index, remove_ids=("n1",), evidence=change).manifest.file(name) is None
    else:
        update(summary.index, remove_ids=("n1",))
    assert verify(summary.index).ok


def test_what_inspect_says(tmp_path: Path, queries: Path) -> None:
    asked = write_titles(tmp_path / "asked.tsv", ["query\tentity_id", "river\tn1", "tower\tn2"])
    summary = build(tmp_path, MANY, TOKENIZER, evidence=wish(asked))
    text = succeed(inspect_command, summary.index).stdout
    assert "  evidence    90 names: " in text
    assert "              90 entities with texts of description: " in text
    assert "              2 past queries: " in text
    assert "  ranking     without a model: " in text
    assert "hits@1 before" in text
    facts = json_of(inspect_command, summary.index, "--json")
    (told,) = facts["ranking"]
    assert told["model"] == ""
    assert told["provenance"]["num_queries"] > 0
    assert "words" in told["weights"]["names"]
    assert facts["evidence"]["kinds"]["queries"]["count"] == 2
    plain = build(tmp_path, LINES, TOKENIZER, name="plain.index", evidence=None)
    facts = json_of(inspect_command, plain.index, "--json")
    assert (facts["evidence"], facts["ranking"]) == (None, None)
    assert "evidence" not in succeed(inspect_command, plain.index).stdout


def test_a_change_is_one_thing_or_the_other(queries: Path) -> None:
    for asked, more in ((wish(), ()), (None, (QueryFile(queries),))):
        with pytest.raises(InputError, match="evidence: expected evidence to make or to keep, or none"):
            EvidenceChange(asked, drop=True, queries=more)


def test_vectors_by_a_method_of_before_are_dropped_and_told(tmp_path: Path) -> None:
    summary = build(tmp_path, LINES, TOKENIZER)
    folder = with_vectors(summary, ENTRY, FILES)
    assert ENTRY.method == "lexical"
    report = verify(folder)
    assert report.ok
    assert "made by lexical, which this version no longer has" in report.notes[0]
    text = succeed(inspect_command, summary.index).stdout
    assert "made by lexical, which this version no longer has; make new ones with: genret update" in text
    said = succeed(update_command, summary.index, "--remove-id", "2").stderr
    assert "the vectors are dropped: made by lexical" in said
    with Index.open(summary.index) as index:
        assert index.vectors is None
        assert index.manifest.file(VECTORS_FILE) is None
        assert {file.name for file in index.manifest.files} & set(EVIDENCE_FILES) == {NAMES_FILE, TEXTS_FILE}


def test_vectors_are_weighed_too(tmp_path: Path, trigrams: VectorMethod) -> None:
    pytest.importorskip("faiss", reason="needs the extra vectors")
    summary = build(tmp_path, MANY, TOKENIZER)
    before = ranking(summary.index).fitted[NO_MODEL]
    update(summary.index, vectors=VectorChange(VectorBuildOptions(trigrams)))
    after = ranking(summary.index).fitted[NO_MODEL]
    assert before.provenance.kinds == ("names", "texts")
    assert after.provenance.kinds == ("names", "texts", "vectors")
    built = fresh(tmp_path, MANY, vectors=VectorBuildOptions(trigrams))
    assert ranking(built.index).to_bytes() == ranking(summary.index).to_bytes()


ABC = character_tokenizer("abc", lower=True)
Entity = tuple[str, str, str, float]  # id, title, aliases, weight


def drawn_entity(entity_id: str, rng: random.Random) -> Entity:
    def form() -> str:
        return "".join(rng.choices("abcABC", k=rng.choice((1, 2, 2, 3, 4))))

    aliases = "|".join(form() for _ in range(rng.choice((0, 0, 1, 3))))
    return entity_id, form(), aliases, rng.choice((1.0, 2.0, 5.0))


def changed(entities: Sequence[Entity], rng: random.Random) -> list[Entity]:
    """Remove, rename, weigh anew and add some."""
    kept = []
    for entity in entities:
        fate = rng.random()
        if fate < 0.1:
            continue
        if fate < 0.2:
            kept.append(drawn_entity(entity[0], rng))
        elif fate < 0.3:
            kept.append((*entity[:3], entity[3] + 1))
        else:
            kept.append(entity)
    return [*kept, *(drawn_entity(f"new{number}", rng) for number in range(rng.randint(0, 3)))]


def opened(folder: Path, entities: Sequence[Entity], has_weights: bool) -> Index:
    folder.mkdir()
    lines = ["entity_id\ttitle\taliases", *("\t".join(entity[:3]) for entity in entities)]
    index = Index.open(build(folder, lines, ABC).index)
    weight = {entity[0]: entity[3] for entity in entities}
    ids = [index.entity(number).entity_id for number in range(index.num_entities)]
    return with_weights(index, [weight[name] for name in ids] if has_weights else None)


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("title_weight", [10.0, 0.5])
def test_what_is_carried_over_is_what_would_be_computed(
    tmp_path: Path, has_weights: bool, title_weight: float
) -> None:
    num_carried = num_missing = num_changed_shares = 0
    for seed in range(12):
        rng = random.Random(seed)
        before = [drawn_entity(f"E{number}", rng) for number in range(14)]
        after = changed(before, rng)
        old = opened(tmp_path / f"old{seed}", before, has_weights)
        new = opened(tmp_path / f"new{seed}", after, has_weights)
        model = TableModel.random(old.vocab_size, seed)
        oracles = [EntityOracle.of(index, model, (1,), title_weight=title_weight) for index in (old, new)]
        logprobs = np.array([oracles[0].logprob(entity) for entity in range(old.num_entities)], np.float32)
        numbers = {old.entity(number).entity_id: number for number in range(old.num_entities)}
        ids = [new.entity(number).entity_id for number in range(new.num_entities)]
        number_of_old = np.array([numbers.get(name, -1) for name in ids])
        prior = Prior("it", ("a",), "digest", title_weight, logprobs)
        carried = carried_over(prior, old, new, number_of_old)
        assert (carried.model, carried.queries, carried.prompts) == ("it", ("a",), "digest")
        for entity, (value, number) in enumerate(zip(carried.logprobs, number_of_old, strict=True)):
            now = oracles[1].logprob(entity)
            if np.isnan(value):
                num_missing += 1
                # The logits are random: an entity has the probability that it had with the same forms alone.
                assert number < 0 or now != pytest.approx(float(logprobs[number]), abs=1e-6)
                if number >= 0 and new.entity(entity).title == old.entity(int(number)).title:
                    num_changed_shares += 1
            else:
                num_carried += 1
                assert value == pytest.approx(now, abs=1e-5)
        old.close()
        new.close()
    assert min(num_carried, num_missing, num_changed_shares) > 10


def test_a_catalogue_of_one_name_each_is_carried_over(tmp_path: Path) -> None:
    old = Index.open(build(tmp_path, ["title", "a", "b", "cc"], ABC, "old.index").index)
    new = Index.open(build(tmp_path, ["title", "a", "ab", "b"], ABC, "new.index").index)
    assert old.is_one_to_one
    assert new.is_one_to_one
    titles = [[index.entity(number).title for number in range(3)] for index in (old, new)]
    logprobs = {"a": -1.0, "b": -2.0, "cc": -np.inf}
    values = np.array([logprobs[title] for title in titles[0]], np.float32)
    number_of_old = np.array([titles[0].index(title) if title in titles[0] else -1 for title in titles[1]])
    carried = carried_over(Prior("it", ("a",), "digest", 10.0, values), old, new, number_of_old)
    expected = np.array([logprobs.get(title, np.nan) for title in titles[1]], np.float32)
    assert np.array_equal(carried.logprobs, expected, equal_nan=True)
    old.close()
    new.close()
