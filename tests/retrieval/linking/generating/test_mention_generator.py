"""`MentionGenerator` with tiny models: links of real titles at exact places, whatever the text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret import Retriever
from genret.decoding.grammar.vocabulary import Vocabulary, Writable
from genret.retrieval.errors import GenretError, InputError, ModelError
from genret.retrieval.linking.documents.text_document import BadDocument, Document
from genret.retrieval.linking.generating.generator import GeneratedMention, MentionGenerator
from genret.retrieval.linking.generating.windows import cut_windows, halves, write_windows
from genret.retrieval.linking.link_options import METHODS, GenerateOptions
from genret.retrieval.training.train_command import train_command
from tests.checkpoints import make_checkpoint, make_index, open_retriever
from tests.commands import succeed
from tests.corpus_shards import write_records

HARD = "\r\n Paris [Texas] (x) \\ e\u0301t\u00e9.\r\n\r\n\U0001f469\u200d\U0001f52c at Mercury (planet)\t\n "


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    with open_retriever(tmp_path_factory.mktemp("small"), "llama", max_positions=96) as opened:
        yield opened


def check_links(text: str, mentions: list[GeneratedMention], retriever: Retriever) -> None:
    at = 0
    for link in mentions:
        assert at <= link.start < link.end <= len(text)
        assert link.mention == text[link.start : link.end] == link.mention.strip() != ""
        assert "\n\r\n" not in link.mention
        at = link.end
        titled = [
            retriever.index.entity(number)
            for number in range(retriever.index.num_entities)
            if retriever.index.entity(number).title == link.title
        ]
        assert list(link.entities) == titled != []
        assert link.shares == (1 / len(titled),) * len(titled)
        assert link.logprob <= 0
        assert link.mention_logprob <= 0


@pytest.mark.parametrize("method", METHODS)
def test_links_have_exact_places_and_real_titles(retriever: Retriever, method: str) -> None:
    generator = MentionGenerator(retriever, GenerateOptions(method=method, seed=3))
    texts = [HARD, "", " \n", "Amazon", HARD.strip() * 2]
    found = generator.annotate(texts)
    assert [len(links) for links in found][1:3] == [0, 0]
    for text, links in zip(texts, found, strict=True):
        check_links(text, links, retriever)
    assert any(found)
    assert MentionGenerator(retriever, generator.options).annotate(texts) == found


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60), seed=st.integers(0, 99))
def test_any_text_is_written_again(small: Retriever, text: str, seed: int) -> None:
    generator = MentionGenerator(small, GenerateOptions(method="sample", seed=seed, window_tokens=20))
    (found,) = generator.annotate_each([text])
    if isinstance(found, GenretError):
        assert any(0xD800 <= ord(character) < 0xE000 for character in text), found
    else:
        check_links(text, found, small)


def test_all_entities_of_a_title_are_named_and_a_filter_leaves_out_some(small: Retriever) -> None:
    text = "They sailed there in spring. " * 6
    for kind, ids in (("company", {"Q9"}), ("river", {"Q7", "Q8"})):
        options = GenerateOptions(method="sample", filter=f"kind = '{kind}'", seed=1)
        (links,) = MentionGenerator(small, options).annotate([text])
        assert links
        assert {entity.entity_id for link in links for entity in link.entities} <= ids
    options = GenerateOptions(method="sample", filter="title = 'Amazon'")
    (links,) = MentionGenerator(small, options).annotate([text])
    assert {tuple(entity.entity_id for entity in link.entities) for link in links} == {("Q8", "Q9")}
    (links,) = MentionGenerator(small, GenerateOptions(filter="kind = 'nothing'")).annotate([text])
    assert links == []


def test_links_below_the_least_logprob_are_nil(small: Retriever) -> None:
    text = "They sailed there in spring."
    (links,) = MentionGenerator(small, GenerateOptions(method="sample")).annotate([text])
    assert links
    assert not any(link.is_nil for link in links)
    logprobs = [link.logprob + math.log(link.shares[0]) for link in links]
    least = max(logprobs)
    (again,) = MentionGenerator(small, GenerateOptions(method="sample", min_logprob=least)).annotate([text])
    assert again == [replace(link, is_nil=mine < least) for link, mine in zip(links, logprobs, strict=True)]


@pytest.mark.parametrize(("weight", "shares"), [(3.0, {"Q9": 0.75, "Q8": 0.25}), (0.0, {"Q8": 1.0})])
def test_entities_of_a_title_share_it_by_weight(
    small: Retriever, monkeypatch: pytest.MonkeyPatch, weight: float, shares: dict[str, float]
) -> None:
    weights = np.ones(small.index.num_entities)
    weights[small.index.entities.numbers(["Q9"])] = weight
    monkeypatch.setattr(small.index, "weights", weights)
    options = GenerateOptions(method="sample", filter="title = 'Amazon'")
    (links,) = MentionGenerator(small, options).annotate(["They sailed there in spring. " * 6])
    assert links
    for link in links:
        found = zip((entity.entity_id for entity in link.entities), link.shares, strict=True)
        assert list(found) == list(shares.items())


def test_mentions_are_bounded(small: Retriever) -> None:
    text = "they sailed there in spring and came back in autumn with the wind"
    options = GenerateOptions(method="sample", max_mentions=1, max_mention_chars=6)
    for seed in range(5):
        generator = MentionGenerator(small, replace(options, seed=seed, window_tokens=256))
        (links,) = generator.annotate([text])
        assert all(len(link.mention) <= 6 for link in links)
    assert MentionGenerator(small, replace(options, max_mentions=0)).annotate([text]) == [[]]


def test_long_documents_are_cut_and_batches_change_nothing(small: Retriever) -> None:
    text = "He saw Paris and Berlin. Then he went home,\r\n\r\nbut not on foot! " * 8
    documents = [
        Document("a", 1, "whole", text),
        BadDocument("a", 2, "no text"),
        Document("a", 3, "part", text, begin=100, end=200, offset=50),
        Document("a", 4, "broken", "a \ud800 b"),
        Document("a", 5, "empty", ""),
    ]
    found = {}
    for batch_size in (1, 3, 64):
        generator = MentionGenerator(small, GenerateOptions(method="sample", batch_size=batch_size))
        found[batch_size] = list(generator.annotate_documents(iter(documents)))
        assert [document for document, _ in found[batch_size]] == documents
    for (whole, one), (_, three), (_, many) in zip(*found.values(), strict=True):
        if isinstance(one, GenretError):
            assert (whole.doc_id, str(one)) == ("broken", str(many))
            continue
        places = [[(m.start, m.end, m.title) for m in links] for links in (one, three, many)]
        assert places[0] == places[1] == places[2]
    whole, _, part, broken, empty = (generated for _, generated in found[1])
    check_links(text, whole, small)
    assert len(whole) > 5
    check_links(text, part, small)
    assert all(100 <= link.start < link.end <= 200 for link in part)
    assert isinstance(broken, InputError)
    assert empty == []


def test_an_error_names_the_text(small: Retriever) -> None:
    generator = MentionGenerator(small)
    with pytest.raises(InputError, match=r"^texts\[1\]: .*not Unicode"):
        generator.annotate(["fine", "\udfff"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"method": "magic"}, "method"),
        ({"beam_size": 0}, "beam_size"),
        ({"max_mention_chars": 0}, "max_mention_chars"),
        ({"max_mentions": -1}, "max_mentions"),
        ({"temperature": math.nan}, "temperature"),
        ({"min_logprob": math.nan}, "min_logprob"),
        ({"prompt": "nowhere"}, "prompt"),
        ({"filter": "kind ="}, "filter"),
        ({"filter": "height = 3"}, "filter"),
    ],
)
def test_options_are_checked(small: Retriever, options: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        MentionGenerator(small, GenerateOptions(**options))  # type: ignore[arg-type]


def test_a_model_with_hardly_any_positions_is_refused(tmp_path: Path) -> None:
    with (
        open_retriever(tmp_path, "llama", max_positions=16) as opened,
        pytest.raises(ModelError, match="too few positions to write texts again"),
    ):
        MentionGenerator(opened)


def test_a_tokenizer_may_lack_bytes_that_no_title_has(
    small: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["Hamlet and Macbeth", "Paris, Texas (not the Nile)"]
    options = GenerateOptions(method="beam")
    expected = MentionGenerator(small, options).annotate(texts)
    vocabulary = small.answerer.engine.vocabulary
    units = vocabulary.writable.units

    def lacking(*missing: bytes) -> Writable:
        return Writable(units - set(missing), vocabulary.writable.is_of_bytes)

    monkeypatch.setattr(vocabulary, "writable", lacking(b"\x01", b"\xf1"))
    assert MentionGenerator(small, options).annotate(texts) == expected
    monkeypatch.setattr(vocabulary, "writable", lacking(b"\x01", b"H"))
    with pytest.raises(ModelError, match="cannot write the title 'Hamlet': it has no token for the byte 48"):
        MentionGenerator(small, options)


def plain_logprobs(retriever: Retriever, prompt: list[int], tokens: tuple[int, ...]) -> list[float]:
    """What every token costs, by one ordinary forward of a decoder-only model."""
    model = retriever.model.pretrained  # type: ignore[attr-defined]
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits.double(), dim=-1).gather(1, torch.tensor(tokens)[:, None])
    return chosen[:, 0].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_logprobs_are_those_of_plain_forwards(small: Retriever, method: str) -> None:
    options = GenerateOptions(method=method, seed=4)
    generator = MentionGenerator(small, options)
    text = "in Paris he met (her) [1]"
    job = generator._job(text)
    (written,) = write_windows(small.model, [job], options, None, generator._speller)
    expected = plain_logprobs(small, job.prompt, written.token_ids)
    assert written.logprobs == pytest.approx(expected, abs=1e-3)
    links = generator._read(text, 7, written)
    vocabulary: Vocabulary = small.answerer.engine.vocabulary
    pieces = [vocabulary.written(token) for token in written.token_ids]
    whole = b"".join(pieces)
    at = 0
    for link in links:
        title = f"]({link.title})".encode()
        first = whole.index(title, at) + 2
        at = first + len(title) - 2
        places = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
        inside = [
            number
            for number, (place, piece) in enumerate(zip(places, pieces, strict=True))
            if piece and place < at and place + len(piece) > first
        ]
        assert link.logprob == pytest.approx(sum(expected[number] for number in inside), abs=1e-3)
        assert link.start >= 7


@pytest.mark.parametrize(
    ("batch_size", "text", "count", "most"), [(4, "some words", 12, 5), (1024, "", 9000, 4096)]
)
def test_documents_are_read_as_they_are_needed(
    small: Retriever, batch_size: int, text: str, count: int, most: int
) -> None:
    """Documents without windows do not pile up."""
    read: list[int] = []

    def documents() -> Iterator[Document]:
        for number in range(count):
            read.append(number)
            yield Document("a", number + 1, str(number), text if number else "Nile")

    generator = MentionGenerator(small, GenerateOptions(batch_size=batch_size))
    for number, (document, _) in enumerate(generator.annotate_documents(documents())):
        assert document.row == number + 1
        assert len(read) - number <= most
    assert len(read) == count


TEXTS = st.text(alphabet=st.sampled_from("ab. \n\r!?\u2029\u0301é日"), max_size=200)


def count(pieces: Sequence[str]) -> list[int]:
    """A token for every two characters of a piece."""
    return [-(-len(piece) // 2) for piece in pieces]


def windows(text: str, most: int, begin: int = 0, end: int | None = None) -> list[str]:
    bounds = cut_windows(text, begin, len(text) if end is None else end, most, count)
    return [text[first:last] for first, last in bounds]


@settings(max_examples=300)
@given(TEXTS, st.integers(1, 12), st.integers(0, 20), st.integers(0, 20))
def test_every_character_is_in_one_window_that_fits(text: str, most: int, before: int, behind: int) -> None:
    begin, end = min(before, len(text)), max(len(text) - behind, min(before, len(text)))
    found = windows(text, most, begin, end)
    assert "".join(found) == text[begin:end]
    assert all(found)
    # A window is counted piece by piece, so that the whole of it never takes more.
    assert all(sum(count([window])) <= most for window in found)
    assert found == windows(text, most, begin, end)


def test_paragraphs_come_before_sentences_and_sentences_before_words() -> None:
    paragraphs = "One two three and four.\n\nFive six. Seven eight nine ten eleven twelve."
    assert windows(paragraphs, 22)[0] == "One two three and four."
    sentences = "One two three. Four five six seven eight nine"
    assert windows(sentences, 15)[0] == "One two three."
    words = "one two three four five six seven"
    assert windows(words, 8) == ["one two three", " four five six", " seven"]
    assert windows("abcdefghij", 2) == ["abcd", "efgh", "ij"]


def test_a_long_text_is_cut_alike_however_much_follows() -> None:
    text = "Some words here. And then others!\n" * 3000
    first = windows(text, 40)
    longer = windows(text + "More words.", 40)
    assert first[:-2] == longer[: len(first) - 2]
    assert all(re.search(r"[.!]$", window) for window in first[:-1])


def test_halves_are_cut_between_words() -> None:
    text = "one two three"
    assert halves(text, 0, len(text)) == ((0, 7), (7, 13))
    assert halves("abcd", 0, 4) == ((0, 2), (2, 4))
    assert halves("abcd", 1, 2) is None


COPIED_TEXTS = (
    "They sailed to Paris [Texas] and back.",
    "Nile",
    "e\u0301t\u00e9 \U0001f469\u200d\U0001f52c at (Berlin) \\ x",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_is_written_with_and_without_proposals(tmp_path: Path, seed: int) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", seed=seed, max_positions=256)
    with Retriever.open(
        make_index(tmp_path, checkpoint), checkpoint, device="cpu", dtype="float64"
    ) as opened:
        generator = MentionGenerator(opened)
        jobs = [generator._job(text) for text in COPIED_TEXTS]
        assert all(job is not None and job.copy for job in jobs)
        ready = [job for job in jobs if job is not None]
        with_copies = write_windows(opened.model, ready, generator.options, None, generator._speller)
        alone = [type(job)(job.prompt, job.grammar, job.max_tokens, job.seed) for job in ready]
        without = write_windows(opened.model, alone, generator.options, None, generator._speller)
    for one, other in zip(with_copies, without, strict=True):
        assert one.token_ids == other.token_ids  # type: ignore[union-attr]
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)  # type: ignore[union-attr]


# Surface form and title: some names have to be told apart from others that begin alike.
NAMES = {
    "Nile": "Nile",
    "Everest": "Mount Everest",
    "K2": "K2",
    "Paris": "Paris",
    "Hamlet": "Hamlet (play)",
    "Mercury": "Mercury (planet)",
    "Marie Curie": "Marie Curie",
    "Berlin": "Berlin",
}
SENTENCES = (
    "We saw {} and {} in spring.",
    "Nobody had told them about {} before.",
    "A book on {} lies on the table.",
    "Between {} and {} there is little.",
    "They talk of {} all day long.",
    "The story of {} is old, that of {} is not.",
    "First came {}, then came the rain.",
    "{} is what she likes best.",
)


def sentence(random: Random) -> tuple[str, list[tuple[int, int, str]]]:
    """A sentence with its links."""
    pieces = random.choice(SENTENCES).split("{}")
    names = random.sample(sorted(NAMES), len(pieces) - 1)
    text, links = pieces[0], []
    for name, piece in zip(names, pieces[1:], strict=True):
        links.append((len(text), len(text) + len(name), NAMES[name]))
        text += name + piece
    return text, links


@pytest.mark.slow
def test_a_model_that_was_taught_to_write_links_finds_and_links_most_mentions(tmp_path: Path) -> None:
    catalogue = "entity_id\ttitle\n" + "".join(f"{n}\t{title}\n" for n, title in enumerate(NAMES.values()))
    (tmp_path / "catalogue.tsv").write_text(catalogue, encoding="utf-8")
    random = Random(1)
    sentences = [sentence(random) for _ in range(400)]
    mentions = [
        {"left": text[:start], "mention": text[start:end], "right": text[end:], "title": title}
        for text, links in sentences
        for start, end, title in links
    ]
    write_records(tmp_path / "mentions.jsonl", mentions)
    succeed(
        train_command,
        *("--catalogue", tmp_path / "catalogue.tsv", "--mentions", tmp_path / "mentions.jsonl"),
        *("--preset", "tiny", "--vocab-size", "400", "--annotations", "0.9", "--max-steps", "700"),
        *("--batch-size", "16", "--cpu", "--out", tmp_path / "model"),
    )
    index = make_index(tmp_path, tmp_path / "model", catalogue)
    random = Random(2)
    texts = [sentence(random) for _ in range(60)]
    with Retriever.open(index, tmp_path / "model", device="cpu") as retriever:
        generated = MentionGenerator(retriever).annotate([text for text, _ in texts])
    found = {(i, m.start, m.end, m.title) for i, mentions in enumerate(generated) for m in mentions}
    right = {(i, *link) for i, (_, links) in enumerate(texts) for link in links}
    assert len(found & right) >= 0.8 * len(right)
    assert len(found & right) >= 0.8 * len(found)
