"""Between the wire and the library: mentions to be linked."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.errors import PromptTooLongError
from retrieval.errors import InputError
from retrieval.types import Mention, RetrieveRequest
from service.client.reply import Reply
from service.errors import CallError
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.wire.replies import reply_from_proto
from service.wire.requests import request_from_proto, request_to_proto
from service.wire.status import error_from_status

_PLACEHOLDER = "-"
_DEFAULT_K = 1
# Options that every mention answers for itself, or the call does once.
_OWN = ("index", "query", "prompt_template")
_MENTION_FIELDS = ("mention", "left", "right")


def link_options_from_proto(message: pb.LinkRequest) -> RetrieveRequest:
    """Return what is asked of every mention, in the library's form; its query is a placeholder.

    Raises:
        InputError: an option is out of range, or may not be set here.
    """
    options = pb.RetrieveRequest()
    options.CopyFrom(message.options)
    for name in _OWN:
        if getattr(options, name):
            raise InputError(f"options.{name}", "must be empty in the options of mentions")
    options.query = _PLACEHOLDER
    if not options.HasField("k"):
        options.k = _DEFAULT_K
    try:
        return request_from_proto(options)
    except InputError as error:
        raise InputError(f"options.{error.field}", error.message) from None


def mention_from_proto(message: pb.Mention) -> Mention:
    """Return the library's form of a mention."""
    return Mention(message.mention, message.left, message.right)


def mention_error(error: Exception) -> Exception:
    """Return what is wrong with one mention under the names that the fields have here."""
    if isinstance(error, PromptTooLongError):
        return InputError("mention", str(error))
    if not isinstance(error, InputError) or error.field in _MENTION_FIELDS:
        return error
    return InputError("mention" if error.field == "query" else f"options.{error.field}", error.message)


def link_request_to_proto(
    mentions: Sequence[Mention], options: RetrieveRequest, index: str = ""
) -> pb.LinkRequest:
    """Return the wire's form of mentions and what is asked of them; the query of `options` is not sent."""
    asked = request_to_proto(options)
    asked.query = ""
    return pb.LinkRequest(
        index=index,
        mentions=[pb.Mention(mention=m.mention, left=m.left, right=m.right) for m in mentions],
        options=asked,
    )


def link_reply_from_proto(
    mentions: Sequence[Mention], message: pb.LinkResponse, request_id: str = ""
) -> list[Reply | CallError]:
    """Return the answers and errors of mentions, in their order; a result's query is the mention's text."""
    return [
        reply_from_proto(mention.mention, result.response)
        if result.WhichOneof("outcome") == "response"
        else error_from_status(result.error, request_id)
        for mention, result in zip(mentions, message.results, strict=True)
    ]
