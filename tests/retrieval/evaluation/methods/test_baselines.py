"""What retrieval is compared with: transformers' `generate`, BM25, and rankings of other systems."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from genret.retrieval.evaluation.datasets.index_entities import EntityFinder
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedEntity
from genret.retrieval.evaluation.methods.generated import GeneratedTitle, Generator
from genret.retrieval.evaluation.methods.model_free_methods import LexicalIndex, RunFileMethod
from genret.retrieval.index.owners import FormOwners
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import owners_best_first
from genret.retrieval.retriever import Retriever
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import make_checkpoint, make_index, open_retriever, train_tokenizer
from tests.evaluation_sets import answer, query_set

QUERY = [LabelledQuery("q", "anything")]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    with open_retriever(tmp_path_factory.mktemp("written"), "bart") as opened:
        yield opened


def named(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, texts: Sequence[str], ends: bool = True
) -> tuple[RankedEntity, ...]:
    """What an unconstrained method makes of texts, written one letter a token as no row of the index is."""
    end = (retriever.index.end_token_id,) if ends else ()
    letters = [[t for letter in text for t in retriever.tokenizer.encode_text(letter)] for text in texts]
    written = [GeneratedTitle((*tokens, *end), -1, -float(rank)) for rank, tokens in enumerate(letters)]
    return made_of(retriever, monkeypatch, f"unconstrained:{max(2, len(texts))}", written)


def made_of(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, name: str, written: list[GeneratedTitle]
) -> tuple[RankedEntity, ...]:
    monkeypatch.setattr(Generator, "write", lambda _, prompts: [written] * len(prompts))
    return answer(retriever, name, QUERY)[0].entities


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Hamlet", ["Q1"]),
        ("Hamlet", ["Q1"]),
        (" The  Scottish Play ", ["Q2"]),
        (" Amazon", ["Q8", "Q9"]),
        (" Quicksilver", ["Q10", "Q11"]),
        (" Maria Sk\u0142odowska", ["Q12"]),
        (" hamlet", ["invalid:hamlet"]),
        (" Hamle", ["invalid:Hamle"]),
        ("", ["invalid:"]),
    ],
)
def test_text_is_looked_up_after_the_text_policy(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    assert [e.entity_id for e in named(retriever, monkeypatch, [text])] == expected


def test_text_without_an_end_is_no_title(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [e.entity_id for e in named(retriever, monkeypatch, [" Hamlet"], ends=False)] == ["invalid:Hamlet"]


def test_texts_rank_their_entities_once(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    found = named(retriever, monkeypatch, [" Mercury", " nothing", " Quicksilver", " Hamlet"])
    assert [e.entity_id for e in found] == ["Q10", "invalid:nothing", "Q11", "Q1"]
    assert [e.score for e in found] == [0.0, -1.0, -2.0, -3.0]
    assert [e.logprob for e in found] == [0.0, -1.0, -2.0, -3.0]


def test_tokens_of_a_row_need_no_text(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    index = retriever.index
    for rank in range(index.num_rows):
        row = [GeneratedTitle(index.row_token_ids(rank), -1, 0.0)]
        expected = [index.entity(number).entity_id for number in index.entities_of(rank)]
        assert [e.entity_id for e in made_of(retriever, monkeypatch, "unconstrained", row)] == expected


@pytest.mark.parametrize(("text", "first"), [(" Amazon", "Q9"), (" Quicksilver", "Q11")])
def test_entities_of_a_title_come_by_their_share(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, text: str, first: str
) -> None:
    """As rows do, whose shares the next test compares."""
    index = retriever.index
    weights = np.ones(index.num_entities)
    weights[index.entities.numbers([first])] = 3
    monkeypatch.setattr(retriever.index, "weights", weights)
    assert named(retriever, monkeypatch, [text])[0].entity_id == first


def test_texts_are_shared_as_rows_are(retriever: Retriever) -> None:
    titles = EntityFinder(retriever.index)
    for rank in range(retriever.index.num_rows):
        text = retriever.index.surface(rank)
        assert titles.named(f" {text} ", 10.0) == FormOwners(retriever.index, None, 10.0)(rank)
    assert titles.named("nobody", 10.0).entities == []
    assert titles.known(["Q3", "Q99", "Q1"]).keys() == {"Q1", "Q3"}
    assert titles.entities(["Q3", "Q99"])["Q3"].title == "Othello"


def test_answers_are_those_of_the_file(retriever: Retriever, tmp_path: Path) -> None:
    file = tmp_path / "theirs.run"
    file.write_text(
        "q2 Q0 Q3 1 9.5 them\nq2 Q0 Q2 2 8 them\nq2 Q0 Q99 3 7 them\nq2 Q0 Q4 4 6 them\nq1 Q0 Q1 1 1 them\n"
    )
    method = RunFileMethod(f"run:{file}", str(file), 3, EntityFinder(retriever.index))
    rankings = method.answer(query_set().queries[:3], 0, lambda _: None)
    assert [r.query_id for r in rankings] == ["q1", "q2", "q3"]
    assert [[(e.entity_id, e.title) for e in r.entities] for r in rankings] == [
        [("Q1", "Hamlet")],
        [("Q3", "Othello"), ("Q2", "Macbeth"), ("invalid:Q99", "Q99")],  # which the index lacks
        [],
    ]
    assert all(ranking.seconds == 0 for ranking in rankings)


LOADERS = {"llama": AutoModelForCausalLM, "bart": AutoModelForSeq2SeqLM}
ALPHA = 1e-4  # of each statistical test, seeded


@pytest.fixture(scope="module", params=list(LOADERS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(request.param) / request.param, request.param)


@pytest.fixture
def opened(checkpoint: Path, tmp_path: Path) -> Retriever:
    return Retriever.open(make_index(tmp_path, checkpoint), checkpoint)


def test_greedy_search_writes_what_an_untouched_model_writes(checkpoint: Path, opened: Retriever) -> None:
    untouched = LOADERS[checkpoint.name].from_pretrained(checkpoint).eval()
    prompts = torch.tensor([[2, 7, 9, 11, 13], [2, 30, 31, 32, 4]])
    opened.warm_up()
    for mask in (torch.ones_like(prompts), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])):
        settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
        ours = opened.model.pretrained.generate(prompts, **settings)  # type: ignore[operator]
        assert torch.equal(ours, untouched.generate(prompts, **settings))


def test_settings_of_the_checkpoint_have_no_say(opened: Retriever) -> None:
    queries = [LabelledQuery("q", "the prince of denmark")]
    (before,) = answer(opened, "unconstrained:4", queries)
    pretrained = opened.model.pretrained
    theirs = GenerationConfig(no_repeat_ngram_size=1, forced_bos_token_id=40, repetition_penalty=9.0)  # type: ignore[no-untyped-call]
    pretrained.generation_config = theirs
    (after,) = answer(opened, "unconstrained:4", queries)
    assert after.entities == before.entities
    assert pretrained.generation_config is theirs


def test_a_title_of_several_names_them_in_order_and_disc_draws_one(checkpoint: Path, tmp_path: Path) -> None:
    index = make_index(tmp_path, checkpoint, "entity_id\ttitle\nQ3\tAmazon\nQ1\tAmazon\nQ2\tAmazon\n")
    with Retriever.open(index, checkpoint) as opened:
        queries = [LabelledQuery("q", "a river")]
        named = {
            name: [e.entity_id for e in answer(opened, name, queries, k=2)[0].entities]
            for name in ("trie", "disc:1", "disc:3", "beam")
        }
        assert named["trie"] == named["beam"] == ["Q1", "Q2"]
        for name in ("disc:1", "disc:3"):
            assert len(named[name]) == 1
            assert {*named[name]} <= {"Q1", "Q2", "Q3"}


def test_greedy_takes_the_likeliest_token_that_continues_a_title(opened: Retriever) -> None:
    """Against a walk over the list of all rows, by a session of ours."""
    index = opened.index
    titles = [index.row_token_ids(rank) for rank in range(index.num_rows)]
    asked = [
        LabelledQuery(text, text) for text in ("quicksilver", "the prince of denmark", "a river in africa")
    ]
    for query, ranking in zip(asked, answer(opened, "greedy", asked, batch_size=2, k=1), strict=True):
        session = opened.model.prefill([opened.config.prompt(None).encode(opened.tokenizer, query.text)])
        logits, written = session.root_logits[0], ()
        while written not in titles:
            following = {row[len(written)] for row in titles if row[: len(written)] == written}
            token = max(following, key=lambda t: float(logits[t]))
            written = (*written, token)
            logits = session.step(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))[0, 0]
        shares = FormOwners(index, None, opened.config.title_weight)(index.row_of(written))
        first = next(iter(owners_best_first(index, shares)))
        assert [e.entity_id for e in ranking.entities] == [index.entity(first).entity_id]


@pytest.mark.statistical
def test_free_samples_follow_the_model(opened: Retriever) -> None:
    """The first tokens of samples against the softmax of the logits: chi-square over 2,000 samples."""
    prompt = opened.config.prompt(None).encode(opened.tokenizer, "denmark")
    law = torch.softmax(opened.model.prefill([prompt]).root_logits[0].double(), dim=0)
    generator = Generator(opened, opened.model, None, along_trie=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        written = [titles[0].token_ids[0] for _ in range(4) for titles in generator.write([prompt] * 500)]
    counts = Counter(written)
    expected = law * len(written)
    common = [t for t in range(len(law)) if expected[t] >= 5]
    statistic = sum((counts[t] - float(expected[t])) ** 2 / float(expected[t]) for t in common)
    assert torch.special.gammaincc(torch.tensor((len(common) - 1) / 2), torch.tensor(statistic / 2)) > ALPHA


def test_a_long_prompt_takes_no_room_from_others(tmp_path: Path) -> None:
    """A decoder-only model of 64 positions: behind the longest prompt there is no room for long titles."""
    checkpoint = make_checkpoint(tmp_path / "llama", "llama", max_positions=64)
    long = "A title with far more tokens than a long prompt leaves room for"
    index = make_index(tmp_path, checkpoint, f"title\n{long}\n")
    with Retriever.open(index, checkpoint) as opened:
        assert 32 < opened.index.max_row_tokens < 60
        generator = Generator(opened, opened.model, None, along_trie=True)
        ((near,), (far,)) = generator.write([[2, 4], [5] * 40])
        assert near.row == 0
        assert not generator.was_cut(near)
        assert far.row == -1
        assert generator.was_cut(far)
        queries = [LabelledQuery("near", "a"), LabelledQuery("far", "word " * 30)]
        found = [r.entities for r in answer(opened, "trie", queries, batch_size=2)]
        assert [len(entities) for entities in found] == [1, 0]  # no room is no answer, and no invalid one


K1, B = 1.5, 0.75
SHOPS = (
    "entity_id\ttitle\taliases\tdescription\n"
    "a\tThe Who\t\tan English rock band\n"
    "b\tC\tC language\tprogramming language of 1972\n"
    "c\tWho Framed Roger Rabbit\tRoger Rabbit\ta film of 1988\n"
    "d\tRabbit\tBunny|Coney\tan animal\n"
    "e\tRabbit, Run\t\ta novel\n"
    "f\tÉclair\t\tpastry\n"
    "g\tRabbit hole\t\t\n"
    "h\tRabbit ears\t\t\n"
)
WORDS = ("the", "who", "c", "rabbit", "RABBIT", "roger", "of", "a", "1988", "éclair", "coney", "nothing")
WORDS += ("language",)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    tokenizer = TextTokenizer(train_tokenizer([SHOPS]), "</s>", "trained")
    return Index.open(make_index(tmp_path_factory.mktemp("lexical"), tokenizer, SHOPS))


@pytest.fixture(scope="module")
def lexical(index: Index) -> LexicalIndex:
    return LexicalIndex(index)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def oracle(index: Index, query: str) -> dict[str, float]:
    """Lucene's BM25 of every entity that shares a word with a query."""
    documents = {}
    for number in range(index.num_entities):
        entity = index.entity(number)
        text = " ".join([entity.title, *entity.aliases, str(entity.metadata["description"] or "")])
        documents[entity.entity_id] = words_of(text)
    mean = sum(map(len, documents.values())) / len(documents)
    scores: dict[str, float] = {}
    for entity_id, words in documents.items():
        counts = Counter(words)
        for word in words_of(query):
            if not counts[word]:
                continue
            with_word = sum(word in other for other in documents.values())
            idf = math.log(1 + (len(documents) - with_word + 0.5) / (with_word + 0.5))
            saturation = counts[word] / (counts[word] + K1 * (1 - B + B * len(words) / mean))
            scores[entity_id] = scores.get(entity_id, 0.0) + idf * saturation
    return scores


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=6), st.integers(1, 10))
def test_ranking_is_by_the_formula(index: Index, lexical: LexicalIndex, words: list[str], k: int) -> None:
    query = " ".join(words)
    (found,) = lexical.propose([query], k)
    expected = oracle(index, query)
    assert len(found) == min(k, len(expected))
    for entity in found:
        assert entity.score == pytest.approx(expected[entity.entity_id], rel=1e-5)
    order = [(-entity.score, entity.entity_id) for entity in found]
    assert order == sorted(order)  # equal scores in the order of the index, which is that of the ids here
    left = set(expected) - {entity.entity_id for entity in found}
    for entity_id in left:
        assert expected[entity_id] <= found[-1].score * (1 + 1e-5)


def test_nothing_in_common_is_no_answer(lexical: LexicalIndex) -> None:
    assert lexical.propose(["", "?!", "zzz qqq", "zzz rabbit"], 2)[:3] == [(), (), ()]
    assert lexical.propose([], 2) == []


def test_a_catalogue_without_words(retriever: Retriever, tmp_path: Path) -> None:
    index = Index.open(make_index(tmp_path, retriever.tokenizer, "title\n!!!\n???\n"))
    assert LexicalIndex(index).propose(["anything", "!!!"], 5) == [(), ()]
