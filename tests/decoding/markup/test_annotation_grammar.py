"""What the grammar of a text's annotations lets through, against all annotations there are."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.holes.text_leaf import TextSearcher
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.markup.annotation_grammar import AnnotationGrammar
from genret.decoding.markup.link_syntax import MentionRules, read_annotated
from genret.decoding.markup.link_titles import LinkTitles
from genret.decoding.sorted_texts import SortedTexts
from tests.annotation_oracle import annotations, is_mention
from tests.json_tokenizers import KINDS, byte_fallback, byte_level
from tests.leaf_oracle import real_vocabulary
from tests.shared_titles import odd_titles
from tests.text_grammar import TextGrammar

_FREE = MentionRules(word_boundaries=False)
_CASES = {
    "words": ("a name, b", ["name", "Name (x)", "na"], MentionRules()),
    "brackets": ("a[b] c\\", ["x", "x]", "[y](z)"], MentionRules()),
    "parentheses": ("f(x) g", ["a", "a)", "a(", "a (b)", "a (b", ")(", "\\"], MentionRules(max_mentions=1)),
    "quotes": ('"q" r', ['"q"', "q", 'q"r', "tab\there"], MentionRules(max_mentions=2)),
    "paragraphs": ("a\r\n\r\nb c\n \nd", ["t"], MentionRules()),
    "blanks": ("  ab  cd ", ["t", "t t"], MentionRules()),
    "inside of words": ("abcd", ["t"], _FREE),
    "longest": ("ab cd ef", ["t"], MentionRules(max_chars=5)),
    "few": ("a b c d", ["t", "u"], MentionRules(max_mentions=2)),
    "marks": ("e\u0301 \U0001f469\u200d\U0001f52c x", ["é", "👩‍🔬"], MentionRules()),
    "none": ("a b", [], MentionRules()),
    "no mentions": ("a b", ["t"], MentionRules(max_mentions=0)),
}  # fmt: skip
_WITHOUT_BLANKS = {
    "words": ("ab,cd", ["ab", "b(c)", "a("], MentionRules()),
    "brackets": ("a[b]\\", ["x", "x]", "\\"], MentionRules()),
    "inside of words": ("abc", ["the", "th"], _FREE),
}


def _titles(titles: list[str], vocabulary: Vocabulary) -> LinkTitles:
    return LinkTitles(SortedTexts.of(title.encode() for title in titles), TextSearcher(vocabulary))


def _grammar(text: str, titles: list[str], rules: MentionRules, vocabulary: Vocabulary) -> AnnotationGrammar:
    return AnnotationGrammar(text, _titles(titles, vocabulary), rules)


def _check_everywhere(grammar: AnnotationGrammar, oracle: TextGrammar, rng: random.Random, most: int) -> None:
    """Compare masks in every state, or in a random choice of `most` of them."""
    waiting, seen = [(grammar.start, b"")], {b""}
    while waiting and most:
        most -= 1
        state, written = waiting.pop(rng.randrange(len(waiting)))
        allowed = oracle.allowed(oracle.advance_bytes(oracle.start, written))
        assert grammar.tokens(state).tolist() == list(allowed) != [], written
        for token in allowed:
            after = grammar.advance(state, token)
            piece = grammar.vocabulary.bytes_of(token)
            if piece is None:
                assert after == grammar.finished
            elif written + piece not in seen:
                seen.add(written + piece)
                waiting.append((after, written + piece))


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *itertools.product(["byte-level", "byte fallback"], _CASES),
        *itertools.product(["wordpiece"], _WITHOUT_BLANKS),
    ],
)
def test_exactly_the_annotations_are_allowed(kind: str, case: str) -> None:
    text, titles, rules = (_WITHOUT_BLANKS if kind == "wordpiece" else _CASES)[case]
    vocabulary = KINDS[kind]()
    oracle = TextGrammar(vocabulary, annotations(text, titles, rules))
    _check_everywhere(_grammar(text, titles, rules, vocabulary), oracle, random.Random(case), 400)


def test_many_titles_are_allowed_as_few_are() -> None:
    vocabulary = byte_level()
    rng = random.Random(5)
    letters = 'abc ()"\\'
    titles = {"".join(rng.choices(letters, k=rng.randint(1, 7))) for _ in range(1500)}
    rules = MentionRules(max_mentions=1)
    oracle = TextGrammar(vocabulary, annotations("a b)", sorted(titles), rules))
    _check_everywhere(_grammar("a b)", sorted(titles), rules, vocabulary), oracle, rng, 400)


def test_text_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(VocabularyError, match="cannot write 'ж'"):
        _grammar("ж", ["t"], MentionRules(), KINDS["wordpiece"]())
    with pytest.raises(ValueError, match="at least one character"):
        _grammar("", ["t"], MentionRules(), byte_level())


def test_what_is_no_choice_is_forced() -> None:
    grammar = _grammar("Unbelievable news", ["t"], MentionRules(), byte_fallback())
    inside_of_a_word = grammar.advance_bytes(grammar.start, b"Un")
    assert grammar.forced_bytes(inside_of_a_word) == b"believable "
    assert grammar.forced_bytes(grammar.advance_bytes(grammar.start, b"[Unbelievable news")) == b"](t)"


def test_budgets_are_kept_to_the_token() -> None:
    vocabulary = byte_level()
    grammar = _grammar("some names in [text]", ["a title", "another"], MentionRules(), vocabulary)
    rng = random.Random(3)
    for budget in range(grammar.tokens_to_finish(grammar.start), 40):
        state, left = grammar.start, budget
        while state != grammar.finished:
            fitting = grammar.fitting_tokens(state, left)
            assert len(fitting)
            state, left = grammar.advance(state, int(rng.choice(fitting.tolist()))), left - 1
        assert left >= 0


def test_bounds_on_what_is_still_to_come_hold() -> None:
    vocabulary = byte_level()
    grammar = _grammar("b a names", ["Z!", "aa", "b (c)"], MentionRules(), vocabulary)
    rng = random.Random(7)
    for _ in range(30):
        state = grammar.start
        while state != grammar.finished:
            most = grammar.most_tokens_to_finish(state)
            tokens = grammar.tokens(state).tolist()
            assert most is not None
            assert all(grammar.tokens_to_finish(grammar.advance(state, token)) <= most for token in tokens)
            state = grammar.advance(state, rng.choice(tokens))


def test_places_where_no_mention_begins_do_not_count_as_the_longest() -> None:
    grammar = _grammar(" a" * 20, ["t"], MentionRules(max_chars=1), byte_level())
    most = grammar.most_tokens_to_finish(grammar.start)
    assert most is not None
    assert most <= grammar.tokens_to_finish(grammar.start) + len("[a](t)")


def test_shortest_rests_are_the_shortest_and_first() -> None:
    text, titles, rules = "ab c_", ["uv", "u", "Z"], MentionRules()
    grammar = _grammar(text, titles, rules, byte_level())
    texts = annotations(text, titles, rules)
    for prefix in {whole[:length] for whole in texts for length in range(len(whole) + 1)}:
        rests = [whole[len(prefix) :] for whole in texts if whole.startswith(prefix)]
        best = min(rests, key=lambda rest: (len(rest), rest))
        state = grammar.advance_bytes(grammar.start, prefix)
        assert grammar.tokens_to_finish(state) <= len(best) + 1
        automaton = grammar._automaton
        detour = automaton.detour(state)
        assert best.startswith(detour), prefix
        after = grammar.advance_bytes(state, detour)
        assert automaton.text[automaton.written(after) :] == best[len(detour) :]


def test_titles_are_found_by_what_was_read() -> None:
    vocabulary = byte_level()
    titles = ["a", "a", "b (c)", "b (c", 'q"', "\\"]
    known = _titles(titles, vocabulary)
    for title in titles:
        numbers = tuple(number for number, other in enumerate(titles) if other == title)
        assert known.members(title.encode()) == numbers
    assert known.members(b"b") == () == known.members(b"a)")
    read = read_annotated(b"x [y](b (c)) [z](b \\(c)\\[")
    assert [link.title for link in read.links] == [b"b (c)", b"b (c"]
    assert read.text == b"x y z["


def _walked_links(
    text: str, titles: list[str], known: LinkTitles, rules: MentionRules, rng: random.Random, share: float
) -> list[tuple[int, int]]:
    """Spans of links along a random walk that is read back; `share` of those that can begin are begun."""
    grammar = AnnotationGrammar(text, known, rules)
    state, tokens = grammar.start, []
    while state != grammar.finished:
        allowed = grammar.tokens(state).tolist()
        assert allowed, tokens
        opening = [token for token in allowed if b"[" in grammar.vocabulary.written(token)]
        tokens.append(rng.choice(opening if opening and rng.random() < share else allowed))
        state = grammar.advance(state, tokens[-1])
    read = read_annotated(grammar.text(tokens))
    assert read.text.decode() == text
    for link in read.links:
        named = [titles[number] for number in known.members(link.title)]
        assert named == [title for title in titles if title == link.title.decode()] != []
    ends = [(read.text[: link.begin], read.text[: link.end]) for link in read.links]
    return [(len(before.decode()), len(through.decode())) for before, through in ends]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet=st.sampled_from("ab[]()\\ \n\r\"'.é\u0301日🍎"), min_size=1, max_size=25),
    titles=st.lists(st.text(alphabet=st.sampled_from('ab()\\[] "é'), min_size=1, max_size=8), max_size=6),
    rules=st.builds(MentionRules, st.integers(1, 12), st.one_of(st.none(), st.integers(0, 3)), st.booleans()),
    kind=st.sampled_from(["byte-level", "byte fallback"]),
    seed=st.integers(0, 1 << 30),
)
def test_random_walks_end_and_are_read_back(
    text: str, titles: list[str], rules: MentionRules, kind: str, seed: int
) -> None:
    vocabulary = KINDS[kind]()
    rng, known = random.Random(seed), _titles(titles, vocabulary)
    links = _walked_links(text, titles, known, rules, rng, 0.7)
    assert rules.max_mentions is None or len(links) <= rules.max_mentions
    at = 0
    for begin, end in links:
        assert begin >= at
        assert is_mention(text, begin, end, rules)
        at = end


@pytest.mark.parametrize("written", ["a\\", "[a", "[a]", "[a](b", "]", "[a[b](c)", "[a](b\\"])
def test_what_is_no_annotation_is_refused_with_its_place(written: str) -> None:
    with pytest.raises(ValueError, match=r"^byte \d+: "):
        read_annotated(written.encode())


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gpt2", "mistral_v1_sp32k", "titles_bytebpe8k"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["python", "compiled"])
def test_odd_titles_are_written_into_odd_texts(name: str, is_compiled: bool) -> None:
    vocabulary = real_vocabulary(name)
    odd = [title for title in odd_titles() if title and title.isprintable()]
    searcher = TextSearcher(vocabulary)
    if is_compiled:
        searcher.warm_up()
    titles = LinkTitles(SortedTexts.of(title.encode() for title in odd), searcher)
    rng = random.Random(11)
    num_links = 0
    for _ in range(150):
        text = " ".join(rng.choices(odd, k=3))[:200]
        rules = MentionRules(word_boundaries=rng.random() < 0.5)
        num_links += len(_walked_links(text, odd, titles, rules, rng, 0.3))
    assert num_links > 100
