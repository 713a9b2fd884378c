"""Log-probabilities of given rows, all of them from one forward over one token tree.

What a decoder finds it scores on the way; this scores what somebody else has found. The rows of a query are
laid out as one tree below its prompt, so that beginnings they share are computed once, and the whole tree is
written in one forward, in which every token sees its prompt and its ancestors only
("Trie-based beam search", Algorithms 2 and 3; sections 3.3 to 3.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.language_model import DecodeSession

# Logits of one forward: trees with more are written in several, parents before children.
DEFAULT_MAX_LOGITS_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class RowScores:
    """What the rows of one query score.

    Attributes:
        logprobs: Natural log of the model's probability of each row, all of its tokens; None for a row of more
            tokens than there is room for. One per row, in order.
        num_nodes: Tokens the model computed behind the prompt: the rows' tokens, beginnings they share once and
            their last ones, behind which nothing is asked, not at all.
    """

    logprobs: tuple[float | None, ...]
    num_nodes: int


def score_rows(
    session: DecodeSession,
    rows: Sequence[Sequence[Sequence[int]]],
    cancel: Sequence[CancelToken | None] | None = None,
    room: Sequence[int | None] | None = None,
    max_logits_bytes: int = DEFAULT_MAX_LOGITS_BYTES,
) -> list[RowScores | DecodingCancelledError]:
    """Score given rows behind every prompt of a session.

    Args:
        session: Its prompts just run, without branches.
        rows: Per query any number of rows, none of them empty; one may stand there twice, or be the beginning of
            another. Tokens are ids of the vocabulary. Length Q.
        cancel: Polled between forwards, one per query.
        room: Most tokens that may follow each prompt; None without bound.
        max_logits_bytes: Bound on the logits of one forward.

    Returns:
        Per query its scores, or why it was ended.

    Raises:
        InvalidLogitsError: the model returned NaN, or no finite logit at all.
        ValueError: not one list per query, an empty row, or a token outside the vocabulary.
    """
    raise NotImplementedError
