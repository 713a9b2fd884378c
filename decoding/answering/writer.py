"""Writes one text per query under a grammar: a batch, token by token, with as few passes as possible.

Each round feeds the model everything it has not read: the token chosen last, forced tokens behind it, and
proposals of a draft model. One transfer brings back the accepted proposals and the next token.
"""

from __future__ import annotations

from collections.abc import Sequence

from genret.decoding.answering.answer import USUAL_COST, Answer, AnswerText, relative_cost
from genret.decoding.answering.speculation import (
    LONGEST_PASS,
    Drafter,
    FedSession,
    PassLogits,
    ProposedSpan,
    SpanProposer,
    commit,
    expected,
    points_of,
)
from genret.decoding.answering.speller import Speller
from genret.decoding.answering.token_choice import decide
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingError, PromptTooLongError
from genret.decoding.grammar.constraint import TokenGrammar
from genret.decoding.grammar.errors import AnswerBudgetError
from genret.decoding.language_model import LanguageModel, PromptPrefix
from genret.decoding.params import AnswerParams


def write_answers(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    grammars: Sequence[TokenGrammar],
    params: AnswerParams | Sequence[AnswerParams],
    *,
    prefix: PromptPrefix | None = None,
    speller: Speller | None = None,
    draft: LanguageModel | None = None,
    proposer: SpanProposer | None = None,
    cancel: Sequence[CancelToken | None] | None = None,
) -> list[AnswerText | DecodingError]:
    """Write one answer per query.

    A query's answer depends on its own prompt, grammar, parameters and seed alone, whatever else is in the
    batch, up to the rounding of the model.

    Args:
        model: The model.
        prompts: Non-empty token id lists. Length Q >= 1.
        grammars: Grammar of each query. Length Q.
        params: Parameters of all queries, or of each.
        prefix: Shared prefix of all prompts, from the model's `share_prefix`.
        speller: The tokenizer, for forced spans; without one only single allowed tokens are forced.
        draft: A smaller model of the same tokenizer, which proposes tokens. It changes neither the law of the
            answers nor greedy answers.
        proposer: Proposes tokens without a model, to greedy queries alone; not together with `draft`.
        cancel: Polled before every round; a cancelled query leaves the batch, the others go on. Length Q.

    Returns:
        For every query its answer or its error: `AnswerBudgetError` and `PromptTooLongError` if the shortest
        answer does not fit, `InvalidLogitsError` if the model's logits could not be used,
        `DecodingCancelledError` if it was cancelled.

    Raises:
        ValueError: the arguments do not fit each other.
    """
    if draft is not None and proposer is not None:
        raise ValueError("draft and proposer exclude each other")
    each = [params] * len(prompts) if isinstance(params, AnswerParams) else list(params)
    if cancel is not None and len(cancel) != len(prompts):
        raise ValueError(f"cancel must have one entry per query ({len(prompts)}), got {len(cancel)}")
    _check(model, prompts, grammars, each)
    results: dict[int, AnswerText | DecodingError] = {}
    answers: dict[int, Answer] = {}
    cost = USUAL_COST if draft is None else relative_cost(draft, model)
    for query, (prompt, grammar, own) in enumerate(zip(prompts, grammars, each, strict=True)):
        try:
            answers[query] = Answer(grammar, own, _budget(model, prompt, grammar, own), speller, cost)
        except (AnswerBudgetError, PromptTooLongError) as error:
            results[query] = error
    if answers:
        tokens = {query: token for query in answers if cancel and (token := cancel[query]) is not None}
        chosen = [prompts[query] for query in answers]
        feed = FedSession(model.prefill_chains(chosen, prefix), len(chosen))
        drafter = None if proposer is None else proposer.select(list(answers))
        if draft is not None:
            drafter = Drafter(draft, chosen, model.vocab_size)
        batch = AnswerBatch(list(answers.values()), feed, drafter)
        while True:
            for query, token in tokens.items():
                answers[query].poll(token)
            if not batch.goes_on:
                break
            batch.step()
        results |= {query: answer.result() for query, answer in answers.items()}
    return [results[query] for query in range(len(prompts))]


def _check(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    grammars: Sequence[TokenGrammar],
    params: Sequence[AnswerParams],
) -> None:
    if not len(prompts) == len(grammars) == len(params) > 0:
        raise ValueError(
            f"prompts, grammars and params must be for the same queries, at least one, got {len(prompts)}, "
            f"{len(grammars)} and {len(params)}"
        )
    for grammar in grammars:
        if grammar.vocab_size != model.vocab_size:
            raise ValueError(
                f"a grammar is for {grammar.vocab_size} logits, the model returns {model.vocab_size}"
            )


def _budget(model: LanguageModel, prompt: Sequence[int], grammar: TokenGrammar, params: AnswerParams) -> int:
    """Most tokens of an answer, its end token included, which needs no position of its own."""
    needed = grammar.tokens_to_finish(grammar.start)
    if needed > params.max_tokens:
        raise AnswerBudgetError(params.max_tokens, needed)
    longest, limit = model.max_prompt_tokens, model.max_positions
    if longest is not None and len(prompt) > longest:
        raise PromptTooLongError(f"the prompt has {len(prompt)} tokens, the model takes at most {longest}")
    if limit is None:
        return params.max_tokens
    room = limit - (0 if model.is_encoder_decoder else len(prompt)) + 1
    if needed > room:
        raise PromptTooLongError(
            f"the shortest answer takes {needed} tokens, end token included; behind the prompt of "
            f"{len(prompt)} tokens the model has room for {max(room, 0)}"
        )
    return min(params.max_tokens, room)


class AnswerBatch:
    """Answers that are being written. Nothing is drafted without a drafter.

    `feed`: the model, after its prefill. `drafter`: proposes tokens: the draft model, after its prefill, or
    another proposer.
    """

    def __init__(self, answers: Sequence[Answer], feed: FedSession, drafter: SpanProposer | None) -> None:
        self._answers = list(answers)
        self._feed = feed
        self._drafter = drafter
        for answer in answers:
            answer.forwards = 1
            answer.draft_forwards = int(isinstance(drafter, Drafter))
            answer.write_forced()

    @property
    def goes_on(self) -> bool:
        """Whether some answer is not over."""
        return not all(answer.over for answer in self._answers)

    def step(self) -> None:
        """Run one round: one pass of the model, more if many tokens were forced at once."""
        self._catch_up()
        stretches = self._propose()
        texts = [
            None if answer.over else answer.tokens + stretch.readable(answer.grammar.finished)
            for answer, stretch in zip(self._answers, stretches, strict=True)
        ]
        rows = self._run(texts)
        points = [
            [] if answer.over else points_of(answer, stretch, row, rows.first[row])
            for row, (answer, stretch) in enumerate(zip(self._answers, stretches, strict=True))
        ]
        wholes = [
            answer.tokens + stretch.tokens for answer, stretch in zip(self._answers, stretches, strict=True)
        ]
        said = decide(
            rows.logits, _following(rows, texts, wholes), [point for own in points for point in own]
        )
        choices = iter(said.choices)
        for row, (answer, stretch, own) in enumerate(zip(self._answers, stretches, points, strict=True)):
            decided = [(point, next(choices)) for point in own]
            if decided:
                known = said.known[row][answer.scored - rows.first[row] :]
                commit(answer, stretch, decided, known, rows.logits)
        self._shrink()

    def _propose(self) -> list[ProposedSpan]:
        # Right behind the prompt the next token costs no pass, so nothing is proposed.
        wanted = [bool(answer.tokens) for answer in self._answers]
        if self._drafter is not None:
            return self._drafter.propose(self._answers, wanted)
        return expected(self._answers, wanted)

    def _catch_up(self) -> None:
        """Feed written tokens until the rest fits one pass."""
        while True:
            texts = [
                answer.tokens[: fed + LONGEST_PASS]
                if not answer.over and len(answer.tokens) - fed > LONGEST_PASS
                else None
                for answer, fed in zip(self._answers, self._feed.lengths(), strict=True)
            ]
            if not any(texts):
                return
            rows = self._run(texts)
            said = decide(
                rows.logits, _following(rows, texts, [answer.tokens for answer in self._answers]), []
            )
            for row, (answer, text) in enumerate(zip(self._answers, texts, strict=True)):
                if text is not None:
                    answer.score(said.known[row][answer.scored - rows.first[row] :])

    def _run(self, texts: Sequence[Sequence[int] | None]) -> PassLogits:
        rows = self._feed.run(texts, [answer.scored for answer in self._answers])
        for answer, ran in zip(self._answers, rows.ran, strict=True):
            answer.forwards += ran
        return rows

    def _shrink(self) -> None:
        """Drop the answers that are over, once they are half of the batch."""
        live = [row for row, answer in enumerate(self._answers) if not answer.over]
        if live and 2 * len(live) <= len(self._answers):
            self._answers = [self._answers[row] for row in live]
            self._feed = self._feed.select(live)
            self._drafter = None if self._drafter is None else self._drafter.select(live)


def _following(
    rows: PassLogits, texts: Sequence[Sequence[int] | None], wholes: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """The known tokens that the rows of every query predict."""
    return [
        whole[first : behind + 1] if text is not None else ()
        for text, whole, first, behind in zip(texts, wholes, rows.first, rows.behind, strict=True)
    ]
