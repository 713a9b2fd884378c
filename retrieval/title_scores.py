"""Scores of titles that somebody else has found: any texts, behind any query, in one tree per query."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.cancellation import CancelToken, reason_to_stop
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.language_model import LanguageModel, PromptPrefix
from decoding.row_scores import RowScores, score_rows
from retrieval.errors import GenretError, InputError, ModelError
from retrieval.index.owners import FormOwners
from retrieval.index.reader import Index
from retrieval.kv_meter import KvMeter
from retrieval.limits import Limits
from retrieval.normalize import normalize
from retrieval.prefix_store import PrefixStore
from retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from retrieval.tallies import log_sum, owners_best_first
from retrieval.text import TextTokenizer
from retrieval.types import Timings

ScoreReply = ScoreResult | GenretError | DecodingCancelledError


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """One request on its way into a batch.

    Attributes:
        request: What is asked.
        prompt: Its token ids.
        rows: The token row of every title, end token included.
        num_shared: How many tokens, at the beginning, every prompt of its template has.
        cancel: Polled between forwards.
    """

    request: ScoreRequest
    prompt: list[int]
    rows: list[tuple[int, ...]]
    num_shared: int = 0
    cancel: CancelToken | None = None

    @property
    def num_tokens(self) -> int:
        """Most tokens that the model computes: those of the prompt and of the distinct titles."""
        return len(self.prompt) + sum(map(len, set(self.rows)))


class TitleScorer:
    """Scores titles with one model, and looks them up in one index.

    Args:
        index: An open index; titles stand after the prompt as its own do.
        model: Writes titles.
        tokenizer: The model's.
        limits: What fits into the model.
        prefixes: Of the model.
        title_weight: How much more a title counts than an alias where entities share a surface form.
    """

    def __init__(
        self,
        index: Index,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        limits: Limits,
        prefixes: PrefixStore,
        title_weight: float,
    ) -> None:
        self._index = index
        self._model = model
        self._tokenizer = tokenizer
        self._limits = limits
        self._prefixes = prefixes
        self._owners = FormOwners(index, None, title_weight)

    def rows(self, titles: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the token rows of titles, under the text policy of catalogues: NFC, single spaces.

        Raises:
            InputError: a title cannot follow a prompt, or holds a token that the model does not know; its
                field is "titles[3]".
        """
        texts = list(dict.fromkeys(map(normalize, titles)))
        row_of = dict(zip(texts, self._tokenizer.encode_titles(texts, self._index.rendering), strict=True))
        rows = []
        for i, title in enumerate(titles):
            row = row_of[normalize(title)]
            if row is None:
                raise InputError(f"titles[{i}]", f"{title!r} merges with the prompt's last tokens")
            if max(row) >= self._model.vocab_size:
                raise InputError(
                    f"titles[{i}]",
                    f"holds token {max(row)}, which the model does not know "
                    f"(it has {self._model.vocab_size} tokens)",
                )
            rows.append(tuple(row))
        return rows

    def run(self, jobs: Sequence[ScoreJob]) -> list[ScoreReply]:
        """Score jobs; those whose prompts share a beginning share their forwards.

        Returns:
            Per job its result, or the error that concerns this job alone.
        """
        replies: dict[int, ScoreReply] = {}
        groups: dict[tuple[int, ...], list[int]] = {}
        prefixes: dict[tuple[int, ...], PromptPrefix | None] = {}
        for i, job in enumerate(jobs):
            prefix = self._prefixes.before(job.prompt, job.num_shared)
            key = () if prefix is None else prefix.token_ids
            prefixes[key] = prefix
            groups.setdefault(key, []).append(i)
        for key, members in groups.items():
            stopped = {i: reason_to_stop(jobs[i].cancel) for i in members}  # while others were scored
            replies.update({i: why for i, why in stopped.items() if why is not None})
            asked = [i for i in members if stopped[i] is None]
            if asked:
                answers = self._score([jobs[i] for i in asked], prefixes[key])
                replies.update(zip(asked, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]

    def _score(self, jobs: Sequence[ScoreJob], prefix: PromptPrefix | None) -> list[ScoreReply]:
        started = time.perf_counter()
        try:
            meter = KvMeter(self._model.prefill([job.prompt for job in jobs], prefix), len(jobs))
            prefilled = time.perf_counter()
            outcomes = score_rows(
                meter.session,
                [job.rows for job in jobs],
                [job.cancel for job in jobs],
                [self._limits.room(len(job.prompt)) for job in jobs],
            )
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                return [ModelError(str(error))]
            # One query's broken logits must not take the others down: score each alone.
            return [self._score([job], prefix)[0] for job in jobs]
        ended = time.perf_counter()
        timings = Timings(
            prefill_ms=(prefilled - started) * 1e3,
            score_ms=(ended - prefilled) * 1e3,
            total_ms=(ended - started) * 1e3,
        )
        return [
            ScoreResult(
                query=job.request.query,
                scores=self._title_scores(job, outcome),
                num_nodes=outcome.num_nodes,
                timings=timings,
                kv=meter.share(query),
            )
            if isinstance(outcome, RowScores)
            else outcome
            for query, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True))
        ]

    def _title_scores(self, job: ScoreJob, scores: RowScores) -> tuple[TitleScore, ...]:
        logprob_of = dict(zip(job.rows, scores.logprobs, strict=True))
        total = log_sum([logprob for logprob in logprob_of.values() if logprob is not None])
        shares_of = {row: self._entity_shares(row) for row in logprob_of}
        return tuple(
            TitleScore(
                title=title,
                logprob=logprob_of[row],
                probability=_share(logprob_of[row], total),
                num_tokens=len(row),
                entity_ids=tuple(shares_of[row]),
                entity_shares=tuple(shares_of[row].values()),
            )
            for title, row in zip(job.request.titles, job.rows, strict=True)
        )

    def _entity_shares(self, row: tuple[int, ...]) -> dict[str, float]:
        rank = self._index.row_of(row)
        if rank < 0:
            return {}
        shares = owners_best_first(self._index, self._owners(rank))
        return {self._index.entity(number).entity_id: share for number, share in shares.items()}


def _share(logprob: float | None, total: float) -> float | None:
    if logprob is None:
        return None
    return math.exp(logprob - total) if total > -math.inf else 0.0
