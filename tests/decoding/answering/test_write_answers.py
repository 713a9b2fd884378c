"""Answers against enumeration: greedy rows, laws, budgets, masks, schemas, and what goes wrong."""

from __future__ import annotations

import gc
import json
import math
import random
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genret.decoding.answering.token_choice as choice_points
from benchmarks.harness.schema_classes import CLASSES, SchemaClass
from genret.decoding.answering import AnswerParams, AnswerText, Speller, write_answers
from genret.decoding.answering.answer import Answer, echo_period
from genret.decoding.answering.token_choice import MAX_LISTED, ChoicePoint, decide, suggest
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError, PromptTooLongError
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import AnswerBudgetError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.text import TextTokenizer
from tests.answer_oracles import check_law, constraint_logprob, greedy_row
from tests.fakes import TableModel
from tests.leaf_oracle import BYTES, tokens_in
from tests.shared_titles import load_tokenizer
from tests.text_grammar import END, TextGrammar, binary_texts, longest_match, pieces, rows_of
from tests.verified_architectures import build

PIECES = pieces([b"a", b"b", b"ab", b"ba", b"aab", b"{", b"}", b"{a"], vocab_size=40)
SMALL = TextGrammar(PIECES, binary_texts(3))
BRACED = TextGrammar(PIECES, [b"{" + text + b"}" for text in binary_texts(3)])
GROWING = TextGrammar(PIECES, [b"a", b"b", b"b" * 9, b"ba" * 5, b"{aaab}"])
GRAMMARS = (SMALL, BRACED, GROWING)


def written(answers: list[object]) -> list[AnswerText]:
    assert all(isinstance(answer, AnswerText) for answer in answers)
    return answers  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(GRAMMARS), min_size=1, max_size=4), st.data())
def test_greedy_answers_take_the_likeliest_token(seed: int, grammars: list[TextGrammar], data) -> None:
    model = TableModel.random(40, seed)
    prompts = [[query + 1] * (query + 1) for query in range(len(grammars))]
    params = [
        AnswerParams(max_tokens=data.draw(st.integers(g.tokens_to_finish(0), 12)), forced_spans=False)
        for g in grammars
    ]
    answers = written(write_answers(model, prompts, grammars, params))
    for prompt, grammar, own, answer in zip(prompts, grammars, params, answers, strict=True):
        row = greedy_row(model, prompt, rows_of(grammar, own.max_tokens))
        assert answer.token_ids == row
        assert answer.text == grammar.text(row)
        assert answer.text in grammar.texts
        assert answer.logprob == pytest.approx(model.logprob(prompt, row), abs=1e-4)
        expected = constraint_logprob(model, prompt, grammar, row)
        assert answer.constraint_logprob == pytest.approx(expected, abs=1e-4)
        # The prompt, and every token but the last is read once.
        assert answer.counts.forwards == len(row)
        assert (answer.counts.sampled, answer.counts.forced) == (len(row), 0)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize(("temperature", "budget"), [(1.0, 99), (0.5, 99), (1.0, 4), (1.7, 5)])
def test_sampled_answers_have_the_law_of_their_steps(
    grammar: TextGrammar, temperature: float, budget: int
) -> None:
    budget = max(budget, grammar.tokens_to_finish(0))
    options = {"temperature": temperature, "max_tokens": budget, "forced_spans": False}
    check_law(TableModel.random(40, 5), grammar, 2000, **options)


def test_the_budget_bites_as_a_condition_on_the_next_token() -> None:
    """More tokens are ruled out than the spare draws can be expected to get past."""
    letters = [bytes([byte]) for byte in range(97, 117)]
    grammar = TextGrammar(
        pieces([b".", b"!", *letters]), [b".", b"!", *(letter + letter + b"." for letter in letters)]
    )
    model = TableModel(23, lambda prompt, text: torch.tensor([0.0, -4.0, -5.0, *[1.0] * 20]))
    assert set(rows_of(grammar, 2)) == {(1, END), (2, END)}
    check_law(model, grammar, 1000, max_tokens=2)


def test_an_answer_depends_on_nothing_else_in_the_batch() -> None:
    model = TableModel.random(40, 3)
    rng = random.Random(0)
    jobs = [
        ([rng.randrange(1, 40)], rng.choice(GRAMMARS), rng.choice((0.0, 1.0)), rng.randrange(100))
        for _ in range(12)
    ]

    def write(some):
        params = [AnswerParams(max_tokens=12, temperature=t, seed=seed) for _, _, t, seed in some]
        return written(write_answers(model, [p for p, *_ in some], [g for _, g, *_ in some], params))

    together = write(jobs)
    assert [write([job])[0] for job in jobs] == together
    shuffled = rng.sample(range(12), 12)
    assert write([jobs[place] for place in shuffled]) == [together[place] for place in shuffled]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_listed_and_packed_masks_choose_alike(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    model = TableModel.random(40, 11)
    params = [AnswerParams(temperature=temperature, seed=seed) for seed in range(30)]
    grammars = [GRAMMARS[seed % 3] for seed in range(30)]
    answers = []
    for most in (0, 2, 512):
        monkeypatch.setattr(choice_points, "MAX_LISTED", most)
        answers.append(written(write_answers(model, [[1]] * 30, grammars, params)))
    for some in answers[1:]:
        assert [one.token_ids for one in some] == [one.token_ids for one in answers[0]]
        for one, other in zip(some, answers[0], strict=True):
            assert one.constraint_logprob == pytest.approx(other.constraint_logprob, abs=1e-4)


def test_a_token_that_is_the_only_one_costs_no_pass() -> None:
    grammar = TextGrammar(pieces([b"a", b"b", b"c"]), [b"abc" * 30 + b"a", b"abc" * 30 + b"b"])
    model = TableModel.random(4, 0)
    (answer,) = written(write_answers(model, [[1]], [grammar], AnswerParams()))
    # The prompt, 90 tokens in two passes, and the last before the end.
    assert (answer.counts.forced, answer.counts.sampled, answer.counts.forwards) == (90, 2, 4)
    assert answer.logprob == pytest.approx(model.logprob([1], answer.token_ids), rel=1e-5)
    forced = range(90)
    expected = constraint_logprob(model, [1], grammar, answer.token_ids, forced)
    assert answer.constraint_logprob == pytest.approx(expected, abs=1e-4)
    (plain,) = written(write_answers(model, [[1]], [grammar], AnswerParams(forced_spans=False)))
    assert plain.token_ids == answer.token_ids
    assert plain.counts.forwards == 92
    assert plain.logprob == pytest.approx(answer.logprob, rel=1e-6)


def test_answers_that_do_not_fit_are_refused_by_query() -> None:
    model = TableModel.random(40, 0)
    model.max_positions = model.max_prompt_tokens = 6  # type: ignore[assignment]
    params = [AnswerParams(max_tokens=2), AnswerParams(), AnswerParams(), AnswerParams(), AnswerParams()]
    prompts = [[1], [1] * 5, [1] * 7, [1], [1] * 4]
    narrow, short, long, *whole = write_answers(model, prompts, [BRACED] * 5, params)
    assert isinstance(narrow, AnswerBudgetError)
    assert (narrow.budget, narrow.needed) == (2, 3)
    assert isinstance(short, PromptTooLongError)
    assert (
        "takes 3 tokens, end token included; behind the prompt of 5 tokens the model has room for 2"
        in str(short)
    )
    assert isinstance(long, PromptTooLongError)
    first, second = written(whole)
    assert len(first.token_ids) <= 6
    assert len(second.token_ids) == 3
    assert first.text in BRACED.texts


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_end_one_answer(broken: float, temperature: float) -> None:
    good = TableModel.random(40, 0)

    def function(prompt, row):
        logits = good.logits(prompt, row).clone()
        if prompt == (2,) and len(row) == 1:
            logits[20] = broken
        return logits

    params = AnswerParams(temperature=temperature, forced_spans=False)
    answers = write_answers(TableModel(40, function), [[1], [2], [3]], [BRACED] * 3, params)
    assert isinstance(answers[1], InvalidLogitsError)
    assert "NaN or infinite logits, behind 1 tokens" in str(answers[1])
    expected = write_answers(good, [[1], [3]], [BRACED] * 2, params)
    assert written([answers[0], answers[2]]) == written(expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_allows_nothing_allowed_is_refused(temperature: float) -> None:
    model = TableModel(40, lambda prompt, row: torch.tensor([-math.inf] * 9 + [0.0] * 31))
    (answer,) = write_answers(model, [[1]], [BRACED], AnswerParams(temperature=temperature))
    assert isinstance(answer, InvalidLogitsError)
    assert "gives no probability to any token that the grammar allows" in str(answer)


def test_cancelled_queries_leave_the_batch() -> None:
    stop = CancelToken()
    plain = TableModel.random(40, 1)

    def function(prompt, row):
        if len(row) == 1:
            stop.cancel()
        return plain.logits(prompt, row)

    answers = write_answers(
        TableModel(40, function), [[1], [1]], [BRACED] * 2, AnswerParams(), cancel=[stop, None]
    )
    assert isinstance(answers[0], DecodingCancelledError)
    assert [answers[1]] == write_answers(plain, [[1]], [BRACED], AnswerParams())


def test_arguments_that_do_not_fit_each_other_are_refused() -> None:
    model = TableModel.random(40, 0)
    with pytest.raises(ValueError, match="for the same queries, at least one, got 2, 1 and 2"):
        write_answers(model, [[1], [2]], [SMALL], AnswerParams())
    with pytest.raises(ValueError, match="got 0, 0 and 0"):
        write_answers(model, [], [], AnswerParams())
    with pytest.raises(ValueError, match=r"one entry per query \(1\), got 2"):
        write_answers(model, [[1]], [SMALL], AnswerParams(), cancel=[None, None])
    with pytest.raises(ValueError, match="a grammar is for 40 logits, the model returns 41"):
        write_answers(TableModel.random(41, 0), [[1]], [SMALL], AnswerParams())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be an integer in"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1.0}, "temperature must be 0 or in"),
        ({"temperature": math.nan}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"draft_tokens": 65}, "draft_tokens"),
    ],
)
def test_params_are_checked(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnswerParams(**changes)  # type: ignore[arg-type]


class Counting(TextGrammar):
    """Counts how often all tokens are looked at."""

    def __init__(self, longest: int) -> None:
        super().__init__(PIECES, binary_texts(longest))
        self.looks = 0

    def fitting_tokens(self, state: int, left: int) -> np.ndarray:
        self.looks += 1
        return super().fitting_tokens(state, left)


def test_masks_of_a_budget_are_the_grammars_and_made_once() -> None:
    grammars = [Counting(longest) for longest in (2, 3, 4)]
    rng = random.Random(0)
    for _ in range(1500):
        grammar = rng.choice(grammars)
        state, left = rng.choice([0, 2, 3, 4]), rng.randrange(1, 5)
        mask = Answer(grammar, AnswerParams(), left).within_budget(state, 0)
        assert tokens_in(mask) == TextGrammar.fitting_tokens(grammar, state, left).tolist()
        assert mask.dtype == np.uint32
        assert mask.shape == grammar.mask(state).shape
        assert not mask.flags.writeable
    # Three grammars, four states and four numbers of tokens.
    assert sum(grammar.looks for grammar in grammars) == 48


def test_grammars_are_not_kept_and_not_mistaken_for_others() -> None:
    for longest in [2, 3, 4] * 10:
        grammar = Counting(longest)
        mask = Answer(grammar, AnswerParams(), 2).within_budget(0, 0)
        assert tokens_in(mask) == TextGrammar.fitting_tokens(grammar, 0, 2).tolist()
        assert grammar.looks == 1
        del grammar
        gc.collect()


SHIPPED = Path(__file__).resolve().parents[3] / "data" / "small-model"
SCHEMA_PIECES = [b'{"', b'": ', b'": "', b'", "', b'"}', b"true", b"false", b"null", b"name", b"age"]
SCHEMA_PIECES += [b"field", b'":']
VOCABULARY = Vocabulary([None] * 3 + BYTES + SCHEMA_PIECES, 2, 280)


@given(st.lists(st.integers(0, 2), max_size=24), st.integers(1, 5))
def test_a_period_is_that_of_a_whole_period_written_again(tokens: list[int], least: int) -> None:
    found = [
        period
        for period in range(1, len(tokens))
        for size in [max(least, period)]
        if size + period <= len(tokens)
        and all(tokens[-place] == tokens[-place - period] for place in range(1, size + 1))
    ]
    assert echo_period(tokens, least) == min(found, default=0)
    assert echo_period(tokens, 0) == 0


CLOSING = [b'",', b'"]', b'"]}', b'"}', b'."', b'\\"']


@pytest.mark.parametrize("forces", [False, True])
@pytest.mark.parametrize(
    ("said", "ended"),
    [
        (b'{"v": ["' + b'ab", "' * 40, {"v": ["ab"] * 4, "w": "."}),
        (b'{"v": "' + b"ab. " * 40, {"v": "ab. " * 4, "w": "."}),
        (b'{"v": 1' + b"0" * 40, {"v": 10**13, "w": "."}),
        (b'{"v": [{"n": 1}' + b', {"n": 1}' * 40, {"v": [{"n": 1}] * 3, "w": "."}),
    ],
    ids=["list", "text", "number", "objects"],
)
def test_what_repeats_itself_is_ended_and_the_rest_is_written(
    said: bytes, ended: object, forces: bool
) -> None:
    """The model says the same again and again, and something else once it cannot."""
    vocabulary = Vocabulary([*BYTES, *CLOSING], 262, 263)
    item = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    value = {"type": ["string", "integer", "array"], "items": {"anyOf": [{"type": "string"}, item]}}
    schema = {"type": "object", "properties": {"v": value, "w": {"type": "string"}}, "required": ["v"]}
    grammar = compile_schema(json.dumps(schema), Leaves(vocabulary), GrammarOptions.for_writing())

    def logits(prompt: object, text: object) -> torch.Tensor:
        written = grammar.text(text)
        scores = torch.full((263,), -9.0)
        scores[list(b'}],"')] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        if said.startswith(written):
            scores[said[len(written)]] = 9.0
        elif written.endswith(b'"w": "'):
            scores[CLOSING.index(b'."') + 256] = 9.0
        return scores

    model = TableModel(263, logits)
    params = AnswerParams(max_tokens=120, echo_tokens=12, forced_spans=forces)
    speller = Speller(lambda text: list(text), vocabulary)
    (answer,) = written(write_answers(model, [[1]], [grammar], params, speller=speller))
    assert json.loads(answer.text) == ended
    assert answer.logprob == pytest.approx(model.logprob([1], answer.token_ids), abs=1e-3)
    (endless,) = written(
        write_answers(model, [[1]], [grammar], replace(params, echo_tokens=0), speller=speller)
    )
    assert len(endless.token_ids) > len(answer.token_ids)


@cache
def leaves() -> Leaves:
    return Leaves(VOCABULARY)


@cache
def grammar_of(name: str) -> Grammar:
    (one,) = (one for one in CLASSES if one.name == name)
    return compile_schema(one.text, leaves(), GrammarOptions.for_writing())


def check(answers: list[object], names: list[str], budgets: list[int]) -> list[AnswerText]:
    schemas = {one.name: one.schema for one in CLASSES}
    checked = []
    for answer, name, budget in zip(answers, names, budgets, strict=True):
        assert isinstance(answer, AnswerText)
        jsonschema.validate(json.loads(answer.text), schemas[name])
        assert len(answer.token_ids) <= budget
        checked.append(answer)
    return checked


@pytest.mark.parametrize("architecture", ["llama-gqa", "gpt2", "gemma3", "bart", "t5"])
def test_answers_are_valid_with_and_without_everything(architecture: str) -> None:
    names = ["simple3", "boolnull", "enum5", "freetext"]
    grammars = [grammar_of(name) for name in names]
    positions = {} if architecture == "t5" else {"max_position_embeddings": 512}
    changes = {"vocab_size": 280, **positions}
    target, draft = (HFLanguageModel(build(architecture, seed=seed, changes=changes)) for seed in (0, 1))
    prompts = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]
    budgets = [grammar.tokens_to_finish(grammar.start) + 7 * place for place, grammar in enumerate(grammars)]
    speller = Speller(partial(longest_match, VOCABULARY), VOCABULARY)
    for temperature in (0.0, 1.0):
        params = [AnswerParams(max_tokens=n, temperature=temperature, forced_spans=False) for n in budgets]
        plain = check(write_answers(target, prompts, grammars, params), names, budgets)
        drafted = check(write_answers(target, prompts, grammars, params, draft=draft), names, budgets)
        if temperature == 0:
            assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
            for one, other in zip(drafted, plain, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        params = [AnswerParams(max_tokens=n, temperature=temperature) for n in budgets]
        forced = write_answers(target, prompts, grammars, params, speller=speller, draft=draft)
        assert all(one.counts.forced > 0 for one in check(forced, names, budgets)[1:])


# Share of tokens that need no choice, at least; compact and spaced. Per cent, of twenty instances with GPT-2.
# Of `boolnull` and `enum5` it is all but the values; elsewhere some tokens that lie in forced bytes are held
# back, since a token may go on into a text or a number behind them. With these, as far as they are asked for:
SHARES = {
    "simple3": ((40, 55), (53, 61)),
    "nested2": ((34, 51), (49, 61)),
    "array_objs": ((27, 48), (43, 55)),
    "complex10": ((42, 58), (49, 61)),
    "enum5": ((80, 85), (80, 85)),
    "freetext": ((3, 5), (5, 7)),
    "boolnull": ((77, 80), (77, 80)),
    "optional10": ((14, 31), (28, 42)),
    "tree": ((29, 54), (49, 62)),
    "reviews": ((84, 86), (84, 86)),
    "address": ((23, 34), (33, 42)),
}
# Names of several tokens each, as those of applications.
_FLAGS = ("is_reviewed", "is_published_now", "was_imported", "has_open_issues", "needs_translation")
_PARTS = ("street_name", "house_number", "postal_code", "city_name", "country_code", "phone_number")
WORDY = (
    SchemaClass(
        "reviews",
        {
            "type": "object",
            "properties": {name: {"type": ["boolean", "null"]} for name in _FLAGS},
            "required": list(_FLAGS),
        },
        lambda chosen: {name: chosen.choice([True, False, None]) for name in _FLAGS},
    ),
    SchemaClass(
        "address",
        {"type": "object", "properties": {name: {"type": "string"} for name in _PARTS}},
        lambda chosen: {
            name: " ".join(chosen.choices(("amber", "river", "quiet", "engine"), k=chosen.randint(1, 3)))
            for name in _PARTS
            if chosen.random() < 0.5
        },
    ),
)


IN_ORDER = GrammarOptions(whitespace="spaced", property_order="schema", extra_properties="declared")


@cache
def real(name: str) -> tuple[TextTokenizer, Leaves, Speller]:
    tokenizer = TextTokenizer.load(SHIPPED) if name == "shipped" else load_tokenizer(name)
    size = tokenizer._plain.get_vocab_size()
    vocabulary = Vocabulary.from_tokenizer(tokenizer.serialized, size, size + 1)
    return tokenizer, Leaves(vocabulary), Speller(tokenizer.encode_bytes, vocabulary)


def shares_of(
    tokenizer_name: str, one: SchemaClass, options: GrammarOptions, count: int
) -> tuple[float, float]:
    """Walk along what the tokenizer makes of instances; every span must be part of it.

    The share of tokens that are forced, and of those that are forced or likely.
    """
    tokenizer, its_leaves, speller = real(tokenizer_name)
    grammar = compile_schema(one.text, its_leaves, options)
    separators = (",", ":") if options.whitespace == "compact" else (", ", ": ")
    num_forced = num_likely = num_tokens = 0
    for value in one.instances(count):
        tokens = tokenizer.encode_bytes(json.dumps(value, ensure_ascii=False, separators=separators).encode())
        assert tokens is not None
        place, state = 0, grammar.start
        while place < len(tokens):
            span = list(speller.span(grammar, state, tokens[:place]))
            assert span == tokens[place : place + len(span)]
            num_forced += len(span)
            num_likely += not span and tokens[place] in speller.likely(grammar, state, tokens[:place])[:1]
            for token in tokens[place : place + max(len(span), 1)]:
                state = grammar.advance(state, token)
                place += 1
        assert grammar.is_complete(state)
        num_tokens += len(tokens)
    return num_forced / num_tokens, (num_forced + num_likely) / num_tokens


@pytest.mark.parametrize("one", WORDY, ids=lambda one: one.name)
def test_a_tokenizer_that_puts_a_blank_before_a_text_is_spared_the_names(one: SchemaClass) -> None:
    """An answer stands behind a prompt: the blank, which the shipped tokenizer puts, is no part of it."""
    assert shares_of("shipped", one, IN_ORDER, 20)[0] > 0.4


@pytest.mark.shared_data
@pytest.mark.parametrize("one", [*CLASSES, *WORDY], ids=lambda one: one.name)
def test_gpt2_is_spared_a_share_of_every_schema(one: SchemaClass) -> None:
    for whitespace, *least in zip(("compact", "spaced"), *SHARES[one.name], strict=True):
        options = replace(IN_ORDER, whitespace=whitespace)
        shares = [100 * share for share in shares_of("gpt2", one, options, 20)]
        assert all(share >= asked for share, asked in zip(shares, least, strict=True)), (whitespace, shares)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    "tokenizer",
    [
        *(pytest.param(f"{name}_base", marks=pytest.mark.slow) for name in ("cl100k", "o200k")),
        "titles_bytebpe8k",
    ],
)
def test_other_tokenizers_would_have_made_every_forced_token(tokenizer: str) -> None:
    rng = random.Random(0)
    shares = []
    for one in CLASSES:
        options = replace(IN_ORDER, whitespace=rng.choice(["compact", "spaced", "flexible"]))
        shares.append(shares_of(tokenizer, one, options, 4)[0])
    assert max(shares) > 0.2


V = 2 * MAX_LISTED + 11  # not a multiple of the words of a mask


def point(query: int, allowed: np.ndarray, temperature: float, seed: int = 0) -> ChoicePoint:
    mask = pieces([b"a"], V).packed(allowed)
    return ChoicePoint(query, 0, mask, temperature, seed, 3, 1, listed=ChoicePoint.listing(mask))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_suggestions_are_what_decisions_would_be(temperature: float) -> None:
    """Few and many allowed tokens in one call, greedy and drawn ones."""
    rng = np.random.default_rng(0)
    counts = [1, 2, 40, MAX_LISTED, MAX_LISTED + 1, V]
    logits = torch.from_numpy(rng.normal(size=(len(counts), 1, V)).astype(np.float32))
    allowed = [np.sort(rng.choice(V, count, replace=False)) for count in counts]
    points = [point(n, tokens, temperature if n % 2 else 0.0, n) for n, tokens in enumerate(allowed)]
    decided = decide(logits, [()] * len(points), points).choices
    suggested = suggest(logits, points)
    for query, (choice, said, tokens) in enumerate(zip(decided, suggested, allowed, strict=True)):
        assert said.tokens[0] == choice.token
        assert not said.broken
        if points[query].temperature > 0:
            law = torch.softmax(logits[query, 0, torch.from_numpy(tokens)] / temperature, 0)
            assert said.probabilities is not None
            ours = said.probabilities if len(tokens) > MAX_LISTED else said.probabilities[: len(tokens)]
            ours = ours[torch.from_numpy(tokens)] if len(tokens) > MAX_LISTED else ours
            assert torch.allclose(ours, law, atol=1e-6)
        else:
            order = sorted(tokens, key=lambda token: -float(logits[query, 0, token]))
            assert list(said.tokens) == order[: len(said.tokens)]
            assert len(said.tokens) == min(4, len(tokens))


def test_what_is_not_allowed_and_what_has_no_probability_is_not_suggested() -> None:
    logits = torch.full((3, 1, V), -math.inf)
    logits[0, 0, 5] = 1.0
    logits[1, 0, [5, 6]] = 1.0
    points = [point(query, np.array([5, 9]), 0.0) for query in range(2)] + [point(2, np.array([5, 9]), 1.0)]
    first, second, third = suggest(logits, points)
    assert first.tokens == second.tokens == (5,)
    assert (third.tokens, third.broken) == ((), False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_cannot_be_used_are_said_to_be_broken(value: float, temperature: float) -> None:
    logits = torch.zeros(1, 1, V)
    logits[0, 0, 9] = value
    (said,) = suggest(logits, [point(0, np.array([5, 9]), temperature)])
    assert said.broken
