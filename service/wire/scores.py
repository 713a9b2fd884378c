"""Converts titles to be scored, and their scores, between protobuf messages and the library's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from genret.retrieval.errors import InputError
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.client.reply import ScoreReply
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import IndexDescription
from genret.service.wire.fields import error_on_wire, fields_from_proto, fields_to_proto
from genret.service.wire.replies import shared_from_proto, shared_to_proto, times_and_index

_PLACEHOLDER = RetrieveRequest("-")


def score_request_from_proto(
    message: pb.ScoreRequest, mention_request: Callable[[Mention, RetrieveRequest], RetrieveRequest]
) -> ScoreRequest:
    """Return the library's form of a request; `mention_request` is the `ServedRetriever`'s.

    Raises:
        InputError: a field is out of range, or does not fit another.
    """
    is_mention = message.HasField("mention")
    query, prompt = message.query, message.prompt_template or None
    if is_mention:
        if prompt is not None:
            raise InputError("prompt_template", "must be empty with a mention")
        mention = message.mention
        asked = mention_request(Mention(mention.mention, mention.left, mention.right), _PLACEHOLDER)
        query, prompt = asked.query, asked.prompt
    try:
        return ScoreRequest(query, tuple(message.titles), prompt)
    except InputError as error:
        raise score_error(error, is_mention) from None


def score_error(error: InputError, is_mention: bool) -> InputError:
    """Return an error with the message's name of the field."""
    if is_mention and error.field == "query":
        return InputError("mention", error.message)
    return error_on_wire(error, ScoreRequest)


def score_request_to_proto(
    subject: str | Mention, titles: Sequence[str], prompt: str | None = None, index: str = ""
) -> pb.ScoreRequest:
    """Return the wire's form of a request; raises InputError with the library's name of a field."""
    query = subject.mention if isinstance(subject, Mention) else subject
    checked = ScoreRequest(query, titles, prompt)  # type: ignore[arg-type]  # takes any iterable
    message = pb.ScoreRequest(index=index, titles=checked.titles, prompt_template=prompt or "")
    if isinstance(subject, Mention):
        message.mention.CopyFrom(pb.Mention(mention=subject.mention, left=subject.left, right=subject.right))
    else:
        message.query = subject
    return message


def score_reply_to_proto(
    result: ScoreResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.ScoreResponse:
    """Return the wire's form of scores."""
    return pb.ScoreResponse(
        scores=[
            pb.TitleScore(**fields_to_proto(_without_share(score), pb.TitleScore)) for score in result.scores
        ],
        num_nodes=result.num_nodes,
        **shared_to_proto(result, index, queue_ms, total_ms),
    )


def _without_share(score: TitleScore) -> TitleScore:
    """Return a score as it is sent: a title without a log-probability has no probability either."""
    return replace(score, probability=None) if score.logprob is None else score


def score_reply_from_proto(query: str, message: pb.ScoreResponse) -> ScoreReply:
    """Return the library's form of scores of titles for `query`."""
    result = ScoreResult(
        query=query,
        scores=tuple(
            TitleScore(**{**fields_from_proto(score, TitleScore), "probability": score.probability})
            for score in message.scores
        ),
        num_nodes=message.num_nodes,
        **shared_from_proto(message),
    )
    return ScoreReply(result, *times_and_index(message))
