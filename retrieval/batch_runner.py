"""Requests in batches: which ones decode together, under which filters, and what each of them gets.

A forward is as wide as its widest query, a batch samples in one way and its prompts share one beginning or
none, so only requests of one decoder, one way of sampling, one such beginning and like width go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from decoding.cancellation import reason_to_stop
from decoding.errors import DecodingCancelledError
from decoding.language_model import PromptPrefix
from retrieval.batch_answerer import BatchAnswerer, Job, Reply
from retrieval.errors import ModelError
from retrieval.filters.entity_filter import EntityFilter
from retrieval.filters.store import FilterStore
from retrieval.methods import nothing_allowed
from retrieval.prefix_store import PrefixStore
from retrieval.seeds import new_seed
from retrieval.types import RetrievalResult, RetrieveRequest

# Logits of one decode step, float32: batches of wide requests are split to stay below it.
_MAX_LOGITS_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Kind:
    """What requests must have in common to decode together.

    Attributes:
        decoder: "beam", "disc", or None where nothing is decoded.
        width: Most branches of a request, rounded up to a power of two.
        top_m: Of `disc`, as the next ones.
        adaptive: Whether the second phase of `disc` learns from the first.
        prefixes: Prefixes per draw.
        exact: Whether `beam` goes on until its list is proven; its sessions keep what they have written.
        explained: Whether they say what the model was asked, for which the host waits at every step.
        shared: Tokens that their prompts begin with and that are run once for all; empty for none.
    """

    decoder: str | None
    width: int
    top_m: int | None = None
    adaptive: bool = False
    prefixes: int = 1
    exact: bool = False
    explained: bool = False
    shared: tuple[int, ...] = ()

    @classmethod
    def of(cls, request: RetrieveRequest, prefix: PromptPrefix | None) -> _Kind:
        """Return the kind of a request whose prompt goes on behind a prefix."""
        width = 1 << (request.width - 1).bit_length()
        shared = () if prefix is None else prefix.token_ids
        if request.decoding != "disc":
            return cls(request.decoding, width, exact=request.exact, explained=request.explain, shared=shared)
        drawn = (request.top_m, request.adaptive, request.prefixes)
        return cls(request.decoding, width, *drawn, explained=request.explain, shared=shared)


class BatchRunner:
    """Answers jobs over one index with one model.

    Args:
        answerer: Answers those that go together.
        filters: Of its index.
        prefixes: Of its model.
        vocab_size: Logits of the model.
    """

    def __init__(
        self, answerer: BatchAnswerer, filters: FilterStore, prefixes: PrefixStore, vocab_size: int
    ) -> None:
        self._answerer = answerer
        self._filters = filters
        self._prefixes = prefixes
        self._vocab_size = vocab_size

    def run(self, jobs: Sequence[Job]) -> list[Reply]:
        """Answer jobs with any mixture of options.

        Returns:
            Per job its result, or the error that concerns this job alone.
        """
        replies: dict[int, Reply] = {}
        groups: dict[_Kind, list[int]] = {}
        prefixes: dict[_Kind, PromptPrefix | None] = {}
        for i, job in enumerate(jobs):
            prefix = self._prefixes.before(job.prompt, job.num_shared)
            kind = _Kind.of(job.request, prefix)
            prefixes[kind] = prefix
            groups.setdefault(kind, []).append(i)
        for kind, members in groups.items():
            most = max(1, _MAX_LOGITS_BYTES // (kind.width * self._vocab_size * 4))
            restrictions = [jobs[i].request.restriction for i in members]
            rest = iter(members)
            for filters in self._filters.batches(restrictions, most, [jobs[i].cancel for i in members]):
                part = list(islice(rest, len(filters)))
                answers = self._answer([jobs[i] for i in part], filters, prefixes[kind])
                replies.update(zip(part, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]

    def run_all(self, jobs: Sequence[Job], names: Sequence[str], batch_size: int) -> list[RetrievalResult]:
        """Answer jobs, at most `batch_size` of them at a time; the first error is raised.

        Args:
            jobs: Not cancelled.
            names: What an error of the model calls each of them.
            batch_size: At least 1.

        Raises:
            ModelError: the model returned broken logits.
        """
        # Neighbours in length share a batch: little of it is padding.
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].prompt))
        results: dict[int, RetrievalResult] = {}
        for at in range(0, len(order), batch_size):
            batch = order[at : at + batch_size]
            for i, reply in zip(batch, self.run([jobs[i] for i in batch]), strict=True):
                if isinstance(reply, ModelError):
                    raise ModelError(f"{names[i]}: {reply}") from reply
                if not isinstance(reply, RetrievalResult):
                    raise reply
                results[i] = reply
        return [results[i] for i in range(len(jobs))]

    def _answer(
        self,
        jobs: Sequence[Job],
        filters: Sequence[EntityFilter | DecodingCancelledError | None],
        prefix: PromptPrefix | None,
    ) -> list[Reply]:
        """Answer compatible jobs in one batch; what is known without the model is not asked of it."""
        replies: dict[int, Reply] = {}
        asked: list[int] = []
        allowed: list[EntityFilter | None] = []
        seeded = [replace(job, request=_seeded(job.request)) for job in jobs]
        for i, (job, made) in enumerate(zip(seeded, filters, strict=True)):
            stopped = reason_to_stop(job.cancel)  # while other groups were answered, or a filter was made
            if isinstance(made, DecodingCancelledError):
                replies[i] = made
            elif stopped is not None:
                replies[i] = stopped
            elif made is not None and not made.num_allowed:
                replies[i] = nothing_allowed(job.request)
            else:
                asked.append(i)
                allowed.append(made)
        if asked:
            answers = self._answerer.answer([seeded[i] for i in asked], allowed, prefix)
            replies.update(zip(asked, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]


def _seeded(request: RetrieveRequest) -> RetrieveRequest:
    """Return the request with a seed where its method needs one."""
    if request.decoding != "disc" or request.seed is not None:
        return request
    return replace(request, seed=new_seed())
