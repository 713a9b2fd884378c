"""`genret tune`, and builds that weigh a model, from the command line to the published ranking."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from genret.index_builder.update_evidence import publish_rankings
from genret.retrieval.checkpoints import folder_fingerprint
from genret.retrieval.defaults import sample_catalogue, small_model_dir
from genret.retrieval.evidence.evidence import open_evidence
from genret.retrieval.index.layout import PRIOR_FILE, RANKING_FILE
from genret.retrieval.index.priors import Prior, read_priors
from genret.retrieval.index.reader import Index
from genret.retrieval.index.versions import live_version
from genret.retrieval.methods.scored_methods import EntityScorer
from genret.retrieval.ranking import prior as prior_module
from genret.retrieval.ranking import tuned_ranking as weighing
from genret.retrieval.ranking.evidence_search import EvidenceSearch
from genret.retrieval.ranking.made_queries import make_queries
from genret.retrieval.ranking.prior import NULL_QUERIES
from genret.retrieval.ranking.rankings import MODEL_LOGPROB, MODEL_PRIOR, NO_MODEL, UNWEIGHED_MODEL, Rankings
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import RetrieveRequest
from genret.service.commands import tune as tune_module
from genret.service.main import cli
from tests.checkpoints import make_checkpoint, make_index, train_tokenizer
from tests.commands import run
from tests.evidence_fixtures import made_up_texts
from tests.index_fixtures import files_of

NUM_ENTITIES = 60
QUICK = ("--made", "40", "--folds", "2", "--quiet")


def _catalogue() -> str:
    names = list(dict.fromkeys(made_up_texts(200, seed=1, most_words=4)))[:NUM_ENTITIES]
    texts = made_up_texts(NUM_ENTITIES, seed=2, most_words=9)
    rows = [f"E{n}\t{name}\t{text}" for n, (name, text) in enumerate(zip(names, texts, strict=True))]
    return "\n".join(["entity_id\ttitle\tdescription", *rows]) + "\n"


def _labels(catalogue: str) -> list[str]:
    """Return queries that are the beginning of a title, or its words turned round; some are for nothing."""
    lines = ["query\tentity_id\tsplit"]
    for number, row in enumerate(catalogue.splitlines()[1:41]):
        entity_id, title, _ = row.split("\t")
        query = title[: max(3, len(title) * 2 // 3)].strip() if number % 2 else " ".join(title.split()[::-1])
        lines.append(f"{query} {number}\t{entity_id}\tdev")
    return [*lines, *(f"zzz qqq {number}\t\tdev" for number in range(5)), "other\tE1\ttest"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, an index with evidence and labelled queries."""
    folder = tmp_path_factory.mktemp("tuned")
    catalogue = _catalogue()
    checkpoint = make_checkpoint(folder / "model", tokenizer=train_tokenizer([catalogue]))
    make_index(folder, checkpoint, catalogue)
    (folder / "labels.tsv").write_text("\n".join(_labels(catalogue)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "place")
    return tmp_path / "place"


genret = partial(run, cli)


def done(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def tune(place: Path, *arguments: object, model: bool = True) -> Result:
    asked = ("tune", place / "index", "--queries", f"{place / 'labels.tsv'}#dev")
    answering = ("--model", place / "model", "--device", "cpu") if model else ("--no-model",)
    return genret(*asked, *answering, *QUICK, *arguments)


def told(place: Path, *arguments: object, model: bool = True) -> dict[str, Any]:
    return json.loads(done(tune(place, "--json", *arguments, model=model)).stdout)


def rankings_of(index: Path) -> Rankings:
    with Index.open(index) as opened:
        return Rankings.read(opened)


def opened(place: Path, model: Path | None = None, **options: Any) -> Retriever:
    return Retriever.open(place / "index", model or place / "model", device="cpu", **options)


def test_a_model_is_weighed_and_answers_by_the_new_ranking(place: Path) -> None:
    before = live_version(place / "index")
    facts = told(place)
    fingerprint = folder_fingerprint(place / "model")
    assert facts["model"] == fingerprint
    assert facts["parent"] == before
    assert facts["published"]
    assert live_version(place / "index") == facts["version"] != before
    names = [one["name"] for one in facts["sets"]]
    assert names == ["labels.tsv#dev", "made from the catalogue", "all"]
    dev = facts["sets"][0]
    assert (dev["num_queries"], dev["num_nothing"]) == (45, 5)
    assert {"hits@1", "hits@10", "loss", "calibration error", "nothing AUC"} == set(dev["figures"])
    with Index.open(place / "index") as index:
        rankings = Rankings.read(index)
        assert set(rankings.fitted) == {NO_MODEL, fingerprint}
        fitted = rankings.fitted[fingerprint]
        assert json.loads(json.dumps(fitted.to_json())) == facts["ranking"]
        assert "labels.tsv#dev (xxh3_128 " in fitted.provenance.queries
        assert index.manifest.history[-1].operation == "tune"
        assert [source.name for source in index.manifest.history[-1].sources] == ["labels.tsv"]
        with opened(place) as retriever:
            np.testing.assert_array_equal(retriever.ranker.ranking.weights, fitted.weights)
            (answer,) = retriever.retrieve("the old town")
            assert answer.nothing_fits is not None
    # What was fitted for other models stays.
    told(place, model=False)
    rankings = rankings_of(place / "index")
    assert set(rankings.fitted) == {NO_MODEL, fingerprint}
    alone = rankings.fitted[NO_MODEL].provenance
    assert alone.num_queries > 45


def test_a_new_version_differs_in_its_ranking_alone_and_can_be_taken_back(
    place: Path, made: Path, tmp_path: Path
) -> None:
    index = place / "index"
    before = live_version(index)
    version = told(place, model=False)["version"]
    shutil.copytree(made, tmp_path / "again" / "place")
    assert told(tmp_path / "again" / "place", model=False)["version"] == version
    old, new = (files_of(index / "versions" / name) for name in (before, version))
    assert set(old) == set(new)
    assert {name for name, data in new.items() if old[name] != data} == {RANKING_FILE, "manifest.json"}
    done(genret("verify", index))
    done(genret("rollback", index))
    assert live_version(index) == before


def test_a_dry_run_and_one_into_a_file_publish_nothing(place: Path) -> None:
    dry = told(place, "--dry-run", model=False)
    assert (dry["dry_run"], dry["published"]) == (True, False)
    facts = told(place, "--out", str(place / "ranking.json"), model=False)
    assert facts["out"] == str(place / "ranking.json")
    rankings = Rankings.from_bytes((place / "ranking.json").read_bytes())
    assert json.loads(json.dumps(rankings.fitted[NO_MODEL].to_json())) == facts["ranking"]
    failed = tune(place, "--out", str(place / "gone" / "ranking.json"), model=False)
    assert failed.exit_code == 2
    assert "cannot be written: No such file" in failed.output
    assert len(list((place / "index" / "versions").iterdir())) == 1


def test_people_are_told_what_changed(place: Path) -> None:
    command = ("tune", place / "index", "--queries", place / "labels.tsv", "--no-model")
    shown = done(genret(*command, "--made", "40", "--folds", "2"))
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("labels.tsv: 46 queries, 5 for nothing of the index; ")
    assert lines[1].startswith("  hits@1             0.")
    assert " -> " in lines[1]
    assert "weights, before and after:" in lines
    assert any("edit distance" in line for line in lines)
    assert lines[-1].startswith(f"{place / 'index'}: version ")
    assert lines[-1].endswith("; ranking without a model")
    assert "genret tune: looking for candidates" in shown.stderr


def _refused(done: Result, *said: str) -> None:
    assert done.exit_code in (1, 2), done.output
    assert "Traceback" not in done.output
    for text in said:
        assert text in done.output


def test_labels_that_the_index_lacks_are_named(place: Path) -> None:
    file = place / "labels.tsv"
    file.write_text(file.read_text() + "who\tE999\tdev\n")
    _refused(tune(place, model=False), "1 queries are for entities", f"{file}, line 48: 'who' is for 'E999'")
    facts = told(place, "--max-bad-rows", "1", "--dry-run", model=False)
    assert facts["left_out"] == 1


def test_what_cannot_be_fitted_is_named(place: Path) -> None:
    labels, made = place / "labels.tsv", ("--made", "0")
    _refused(genret("tune", place / "index", "--no-model", *made), "there is nothing to fit to")
    _refused(tune(place, "--no-model"), "--model and --no-model exclude each other")
    _refused(tune(place, "--prior", model=False), "--prior and --no-model exclude each other")
    _refused(tune(place, "--prior", "--out", labels), "--prior and --out exclude each other")
    few = "expected at least 20 with their entity among the candidates"
    labels.write_text("query\tentity_id\tsplit\nred\tE1\tdev\n")
    _refused(tune(place, *made, model=False), few)
    labels.write_text("query\tentity_id\tsplit\n" + "".join(f"q{n}\t\tdev\n" for n in range(40)))
    _refused(tune(place, *made, model=False), few, "got 0")
    labels.write_text("query\tcolour\nred\tred\n")
    _refused(tune(place, model=False), "labels.tsv, line 1: expected JSON objects, or a header")
    labels.unlink()
    _refused(tune(place, model=False), "labels.tsv", "no such file")
    make_checkpoint(place / "model", tokenizer=train_tokenizer(["quite other words"]))
    _refused(tune(place), "was built with the tokenizer")
    shutil.rmtree(place / "model")
    _refused(tune(place), "model")
    shutil.rmtree(place / "index")
    _refused(tune(place, model=False), "index")


def test_an_index_without_evidence_is_named(place: Path) -> None:
    done(genret("update", place / "index", "--evidence", "none"))
    said = "has no evidence that proposes entities"
    _refused(tune(place, model=False), said, "genret update INDEX --evidence all")
    _refused(tune(place), said)


def test_damaged_evidence_is_named_and_a_damaged_ranking_replaced(place: Path) -> None:
    folder = place / "index" / "versions" / live_version(place / "index")
    ranking = folder / RANKING_FILE
    ranking.write_bytes(ranking.read_bytes()[::-1])
    facts = told(place, model=False)
    assert facts["published"]
    folder = place / "index" / "versions" / facts["version"]
    names = folder / "names.arrow"
    names.write_bytes(names.read_bytes()[:-1] + b"?")
    shutil.rmtree(place / "index" / "versions" / facts["parent"])
    _refused(tune(place, model=False), "the evidence names cannot be used", "names.arrow")


def test_an_index_that_was_changed_meanwhile_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = place / "index"
    tuned = weighing.tune
    updated: list[str] = []

    def late(*arguments: Any, **options: Any) -> Any:
        for entity in ("E1", "E2", "E3"):  # the version that is tuned is not kept
            done(genret("update", index, "--remove-id", entity))
            updated.append(live_version(index))
        return tuned(*arguments, **options)

    monkeypatch.setattr(weighing, "tune", late)
    _refused(tune(place, model=False), "was changed meanwhile", "tune it again")
    assert live_version(index) == updated[-1]
    assert {folder.name for folder in (index / "versions").iterdir()} == set(updated)


def test_interrupting_leaves_the_index_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = live_version(place / "index")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_module, "_fitted", interrupted)
    cut = tune(place, model=False)
    assert cut.exit_code == 130
    assert f"version {before} stays live" in cut.output


def build(place: Path, *arguments: object, out: str = "weighed") -> Result:
    """Build the catalogue anew as `out`, with the model and one thread, as `genret tune` takes."""
    return genret("build", place / "titles.tsv", "--out", place / out, "--threads", 1, *arguments)


def weigh(place: Path, model: object = None, *arguments: object) -> Result:
    return build(place, "--weigh-model", model or place / "model", *arguments)


def test_a_build_weighs_a_model_as_a_tuning_without_labels_does(place: Path) -> None:
    model = place / "model"
    said = done(weigh(place)).stderr
    assert "the model is weighed: hits@1 of queries made from the catalogue 0." in said
    done(build(place, "--tokenizer", model, out="plain"))
    tuned = done(genret("tune", place / "plain", "--model", model, "--device", "cpu", "--quiet", "--json"))
    assert [one["name"] for one in json.loads(tuned.stdout)["sets"]] == ["made from the catalogue"]
    with Index.open(place / "weighed") as index, Index.open(place / "plain") as other:
        assert Rankings.read(index).to_bytes() == Rankings.read(other).to_bytes()
        (step,) = index.manifest.history
        assert step.operation == "build"
        assert step.options["evidence"] == {"weigh_model": str(model)}
    with Retriever.open(place / "weighed", model, device="cpu") as retriever:
        assert retriever.ranker.is_weighed
    done(genret("verify", place / "weighed"))


def test_a_model_that_knows_nothing_counts_next_to_nothing_and_does_no_harm(place: Path) -> None:
    """The model is random; it is asked other queries than those that it was weighed by."""
    done(weigh(place))
    with Index.open(place / "index") as index:
        made = make_queries(index, open_evidence(index), ("description",), 300, seed=7)
        right = [index.entity(query.entities[0]).title for query in made]
    requests = [RetrieveRequest(query.text, k=1) for query in made]

    def hits(answers: Sequence[object]) -> float:
        firsts = [[candidate.title for candidate in one.candidates[:1]] for one in answers]
        return sum(first == [title] for first, title in zip(firsts, right, strict=True)) / len(right)

    shares = {}
    for name in ("index", "weighed"):
        with Retriever.open(place / name, place / "model", device="cpu") as retriever:
            shares[name] = hits(retriever.retrieve_batch(requests))
            weight = float(retriever.ranker.ranking.weights[MODEL_LOGPROB])
            assert weight == UNWEIGHED_MODEL if name == "index" else 0 <= weight < UNWEIGHED_MODEL / 4
    with EvidenceSearch.open(place / "weighed") as search:
        alone = hits(search.retrieve_batch(requests))
    assert shares["weighed"] > alone - 0.02
    assert shares["index"] < alone - 0.06


def test_the_shipped_model_is_weighed_by_its_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taught the sample catalogue, so what it says counts."""
    monkeypatch.setattr(weighing, "NUM_QUERIES", (120, 120))
    lines = sample_catalogue().read_text(encoding="utf-8").splitlines(keepends=True)[:201]
    (place / "titles.tsv").write_text("".join(lines), encoding="utf-8")
    done(weigh(place, "shipped"))
    with Index.open(place / "weighed") as index:
        rankings = Rankings.read(index)
        assert index.manifest.history[-1].options["evidence"] == {"weigh_model": "shipped"}
    assert set(rankings.fitted) == {NO_MODEL, folder_fingerprint(small_model_dir())}
    assert rankings.fitted[folder_fingerprint(small_model_dir())].weights[MODEL_LOGPROB] > 0.1


def test_a_build_cut_short_while_weighing_goes_on_from_what_was_tokenised(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(weighing, "tune", interrupted)
        cut = weigh(place)
    assert cut.exit_code == 130
    assert f"nothing was built at {place / 'weighed'}; 60 records are tokenised already" in cut.output
    facts = json.loads(done(weigh(place, None, "--json")).stdout)
    assert facts["resumed"] == {"shards": 1, "records": 60}
    assert not (place / "weighed" / "work").exists()
    assert set(rankings_of(place / "weighed").fitted) == {NO_MODEL, folder_fingerprint(place / "model")}


def test_models_that_cannot_be_weighed_are_refused_before_anything_is_made(place: Path) -> None:
    model = place / "model"
    other = make_checkpoint(place / "other", tokenizer=train_tokenizer(["quite other words"]))
    another = f"--weigh-model: {other}: expected the tokenizer of the index, {model} ("
    _refused(weigh(place, other, "--tokenizer", model), another)
    untaught = f"--weigh-model: {model}: expected a model taught the titles of the index"
    _refused(weigh(place, model, "--title-prefix", "-"), untaught)
    _refused(weigh(place, place / "gone"), str(place / "gone"))
    _refused(weigh(place, model, "--evidence", "none"), "--weigh-model goes without --evidence none")
    (model / "config.json").unlink()
    _refused(weigh(place), "has no config.json")
    assert not (place / "weighed").exists()


def test_too_few_queries_leave_a_model_unweighed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighing, "NUM_QUERIES", (10, 10))
    said = done(weigh(place)).stderr
    assert "the model was not weighed: expected at least 20 with their entity among" in said
    assert set(rankings_of(place / "weighed").fitted) == {NO_MODEL}


def test_asking_names_what_weighs_a_model(place: Path) -> None:
    model = place / "model"
    asked = ("ask", place / "index", "the old town", "--model", model, "--device", "cpu")
    hint = (
        "the model was never weighed on this index, and counts little beside names and texts, as suits a "
        f"small catalogue; hundreds of queries would weigh it: genret tune {place / 'index'} --model {model} "
        "--queries FILE\n"
    )
    assert hint in genret(*asked).stderr
    assert "weighed" not in genret(*asked, "--method", "beam").stderr
    told(place)
    assert "weighed" not in genret(*asked).stderr


def prior_of(place: Path, version: str | None = None) -> Prior:
    folder = place / "index" if version is None else place / "index" / "versions" / version
    with Index.open(folder) as index:
        (prior,) = read_priors(index).values()
        return replace(prior, logprobs=prior.logprobs.copy())


def prior_is_used(retriever: Retriever) -> bool:
    evidence = retriever.ranker.evidence
    (asked,) = evidence.ask(["old town"])
    return bool(evidence.features(asked, np.arange(5))[:, MODEL_PRIOR].any())


def give_weight_to_the_prior(index: Path) -> str:
    """Publish the rankings with a weight for the prior, whatever the fit found it worth."""
    with Index.open(index) as opened:
        rankings = json.loads(opened.evidence_path(RANKING_FILE).read_bytes())
        version = opened.version
    for model, ranking in rankings["rankings"].items():
        if model != NO_MODEL:
            ranking["weights"]["model.prior"] = 0.125
    made = {RANKING_FILE: json.dumps(rankings).encode("ascii")}
    return publish_rankings(index, version, made, [], {}, 0, 5)


def test_a_prior_is_computed_kept_and_fitted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loud = [word for word in QUICK if word != "--quiet"]
    labels = f"{place / 'labels.tsv'}#dev"
    command = ("tune", place / "index", "--queries", labels, "--model", place / "model", "--device", "cpu")
    result = done(genret(*command, *loud, "--prior", "--json"))
    assert json.loads(result.stdout)["prior"] == list(NULL_QUERIES)
    assert "genret tune: the prior: 60 entities, 60 titles and aliases of about " in result.stderr
    prior = prior_of(place)
    fingerprint = folder_fingerprint(place / "model")
    assert (prior.model, prior.queries, prior.num_missing) == (fingerprint, NULL_QUERIES, 0)
    with opened(place) as retriever:
        assert prior_is_used(retriever)
        assert retriever.index.manifest.history[-1].options["prior"] == list(NULL_QUERIES)
    done(genret("verify", place / "index"))
    shown = genret("inspect", place / "index").stdout
    assert f"prior       of the model {fingerprint}, behind 'something', 'N/A'" in shown
    assert "have none yet" not in shown
    made: list[object] = []
    make = prior_module.null_prompts
    monkeypatch.setattr(prior_module, "null_prompts", lambda *of: made.append(of) or make(*of))
    assert told(place, "--prior", "--debug")["prior"] == list(NULL_QUERIES)
    assert len(made) == 1
    assert np.array_equal(prior_of(place).logprobs, prior.logprobs)
    # A tuning without the option keeps what there is, and fits its weight all the same.
    assert told(place)["prior"] is None
    assert np.array_equal(prior_of(place).logprobs, prior.logprobs)


def test_an_update_keeps_the_prior_of_what_is_the_same_and_a_rollback_brings_it_back(place: Path) -> None:
    """One entity is removed, one renamed, one gets another description, one is new and shares a title."""
    first = told(place, "--prior")["version"]
    rows = [row.split("\t") for row in (place / "titles.tsv").read_text(encoding="utf-8").splitlines()]
    header, lines = rows[0], {row[0]: row for row in rows[1:]}
    shared = lines["E9"][1]
    changed = [
        ["E5", lines["E5"][1] + " renamed", "text"],
        ["E6", lines["E6"][1], "another text"],
        ["new", shared, "a namesake"],
    ]
    more = place / "more.tsv"
    more.write_text("\n".join("\t".join(row) for row in [header, *changed]) + "\n", encoding="utf-8")
    index = place / "index"
    updated = genret("update", index, "--add", more, "--remove-id", "E7", "--tokenizer", place / "model")
    assert "3 entities have no prior of the model" in done(updated).stderr
    before, after = prior_of(place, first), prior_of(place)
    with Index.open(index) as new:
        missing = {new.entity(int(number)).entity_id for number in np.flatnonzero(np.isnan(after.logprobs))}
    assert missing == {"E5", "E9", "new"}
    done(genret("verify", index))
    assert "3 entities have none yet and count as the mean" in genret("inspect", index).stdout
    # They are computed by the next tuning, as those of an index that was built so.
    assert told(place, "--prior", "--max-bad-rows", "5")["published"]
    assert prior_of(place).num_missing == 0
    done(genret("rollback", index, "--to", first))
    assert np.array_equal(prior_of(place).logprobs, before.logprobs)


def test_a_damaged_prior_is_named_and_its_ranking_is_not_used(place: Path) -> None:
    told(place, "--prior")
    folder = place / "index" / "versions" / give_weight_to_the_prior(place / "index")
    with opened(place) as retriever:
        assert retriever.ranker.is_weighed
        assert retriever.retrieve(["old town"], k=3)[0].missing_evidence == ()
    file = folder / PRIOR_FILE
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    for version in (place / "index" / "versions").iterdir():
        if version != folder:
            shutil.rmtree(version)
    with opened(place) as retriever:
        assert not retriever.ranker.is_weighed
        assert list(retriever.ranker.problems) == ["prior"]
        assert retriever.ranker.ranking.weights[MODEL_LOGPROB] == UNWEIGHED_MODEL
        (result,) = retriever.retrieve(["old town"], k=3)
        assert result.missing_evidence == ("prior",)
        assert result.candidates
    verified = genret("verify", place / "index")
    assert verified.exit_code == 1
    assert f"{PRIOR_FILE}: the manifest says digest" in verified.stderr
    assert "a prior is computed with: genret tune INDEX --model MODEL --prior" in verified.stderr
    assert f"DAMAGED: {PRIOR_FILE}" in genret("inspect", place / "index").stdout
    # An update does without it; whoever opens the index is told.
    updated = done(genret("update", place / "index", "--remove-id", "E1")).stderr
    assert f"the priors of models are dropped: {PRIOR_FILE}: the manifest says digest" in updated
    with opened(place) as retriever:
        assert list(retriever.ranker.problems) == ["prior"]
    assert told(place, "--prior", "--max-bad-rows", "5")["published"]
    with opened(place) as retriever:
        assert retriever.ranker.is_weighed
        assert not retriever.ranker.problems


def test_the_prior_of_another_model_or_another_prompt_is_not_used(place: Path) -> None:
    told(place, "--prior")
    tokenizer = train_tokenizer([_catalogue()])
    other = make_checkpoint(place / "other", seed=5, tokenizer=tokenizer)
    with opened(place, other) as retriever:
        assert not prior_is_used(retriever)
        assert not retriever.ranker.problems
    told(place, "--prior", "--model", str(other))
    with Index.open(place / "index") as index:
        priors = read_priors(index)
        assert set(priors) == {folder_fingerprint(place / "model"), folder_fingerprint(other)}
        first, second = (prior.logprobs for prior in priors.values())
        assert not np.array_equal(first, second)
    give_weight_to_the_prior(place / "index")
    with opened(place, other, prompt="mention") as retriever:
        assert not prior_is_used(retriever)
        assert "computed with other prompts" in str(retriever.ranker.problems["prior"])
        assert not retriever.ranker.is_weighed
    with opened(place, other) as retriever:
        assert prior_is_used(retriever)


def test_what_is_computed_of_a_prior_is_kept_whatever_comes_then(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it is computed, and a fit that fails behind it."""
    monkeypatch.setattr(prior_module, "_FORMS_AT_ONCE", 25)
    score = EntityScorer.score
    num_calls = 0

    def cut(self: EntityScorer, *arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise KeyboardInterrupt
        return score(self, *arguments)

    before = live_version(place / "index")
    with monkeypatch.context() as patch:
        patch.setattr(EntityScorer, "score", cut)
        dry = tune(place, "--prior", "--dry-run")
        assert dry.exit_code == 130
        assert live_version(place / "index") == before
        num_calls = 0
        cut_off = tune(place, "--prior")
    assert cut_off.exit_code == 130
    version = live_version(place / "index")
    assert f"interrupted after publication: {place / 'index'} is now at version {version}" in cut_off.output
    assert prior_of(place).num_missing == NUM_ENTITIES - 25
    (place / "labels.tsv").write_text("query\tentity_id\tsplit\nred\tE1\tdev\n")
    _refused(tune(place, "--prior", "--made", "0"), "expected at least 20 with their entity among")
    assert prior_of(place).num_missing == 0
    assert set(rankings_of(place / "index").fitted) == {NO_MODEL}
