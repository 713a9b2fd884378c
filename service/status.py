"""The one table from errors to gRPC status codes and their details, without protobuf."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpc import StatusCode

from genret.decoding.errors import (
    DeadlineExceededError,
    DecodingCancelledError,
    DecodingError,
    EngineError,
    PromptTooLongError,
)
from genret.retrieval.errors import (
    EvidenceMissingError,
    IndexChecksumError,
    IndexDirectoryError,
    IndexFormatError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    MissingExtraError,
    ModelError,
    SourceError,
)
from genret.service.errors import (
    MalformedMessageError,
    NotReadyError,
    OverloadedError,
    PermissionDeniedError,
    ServiceError,
    UnauthenticatedError,
    UnknownIndexError,
    UnservableIndexError,
)

DOMAIN = "genret"
INDEX_RESOURCE = "genret.v1.Index"
_NO_EVIDENCE = (
    "the index has no evidence that proposes entities: add some with `genret update INDEX --evidence all`, "
    "or use another method than shortlist"
)
# Names of an index's files, repeated here because a client need not be able to read an index.
EVIDENCE_FILES = (
    "vectors.faiss",
    "embedder.safetensors",
    "names.arrow",
    "texts.arrow",
    "queries.arrow",
    "ranking.json",
    "prior.arrow",
)
_ENGINE_RETRY_SECONDS = 2.0
_UNREADABLE = "the index cannot be read"


class Detail(NamedTuple):
    """A detail of an error: the name of its message in google.rpc, and its fields as protobuf takes them."""

    message: str
    fields: Mapping[str, Any]


def field_violation(field: str, description: str) -> Detail:
    """Return BadRequest with one violation."""
    return Detail("BadRequest", {"field_violations": [{"field": field, "description": description}]})


def _unknown_index(error: UnknownIndexError) -> Detail:
    about = {"resource_type": INDEX_RESOURCE, "resource_name": error.name, "description": str(error)}
    return Detail("ResourceInfo", about)


def _precondition(kind: str, subject: str, description: str) -> Detail:
    violation = {"type": kind, "subject": subject, "description": description}
    return Detail("PreconditionFailure", {"violations": [violation]})


def _reason(reason: str, **metadata: str) -> Detail:
    return Detail("ErrorInfo", {"reason": reason, "domain": DOMAIN, "metadata": metadata})


def _retry_after(seconds: float) -> Detail:
    whole, nanos = divmod(int(seconds * 1e9), 10**9)
    return Detail("RetryInfo", {"retry_delay": {"seconds": whole, "nanos": nanos}})


class Failure(NamedTuple):
    """The status that a failed request gets."""

    code: StatusCode
    message: str
    details: tuple[Detail, ...] = ()


class FailedInEngineError(ServiceError):
    """A call failed in the engine's process, which has given it its status, and logged it if it was a bug."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Row(NamedTuple):
    """One row of the table: an error with its code, details and message."""

    error: type[Exception]
    code: StatusCode
    details: Callable[[Any], tuple[Detail, ...]] = lambda error: ()
    message: Callable[[Any], str] = str


def _unmet(error: type[Exception], kind: str, subject: str, words: Callable[[Any], str] = str) -> Row:
    """Return the row of a failed precondition whose description is the message."""
    details = lambda e: (_precondition(kind, subject, words(e)),)  # noqa: E731
    return Row(error, StatusCode.FAILED_PRECONDITION, details, words)


def _format_problem(error: IndexFormatError) -> tuple[str, str]:
    """Return kind and description of a broken index. Its text may name a path: only evidence is named."""
    file = str(error).partition(":")[0]
    if file in EVIDENCE_FILES:
        return "EVIDENCE", f"{file}: not the evidence that the index manifest describes"
    return "INDEX", _UNREADABLE


# The first row that matches wins: derived errors stand before their bases. Texts that name a path of the
# server are replaced.
TABLE: tuple[Row, ...] = (
    Row(MalformedMessageError, StatusCode.INVALID_ARGUMENT, lambda e: (field_violation("", str(e)),)),
    Row(InputError, StatusCode.INVALID_ARGUMENT, lambda e: (field_violation(e.field, e.message),)),
    Row(PromptTooLongError, StatusCode.INVALID_ARGUMENT, lambda e: (field_violation("query", str(e)),)),
    Row(UnknownIndexError, StatusCode.NOT_FOUND, lambda e: (_unknown_index(e),)),
    Row(
        OverloadedError,
        StatusCode.RESOURCE_EXHAUSTED,
        lambda e: (_reason(e.reason), _retry_after(e.retry_after_s)),
    ),
    Row(
        EngineError,
        StatusCode.UNAVAILABLE,
        lambda e: (_reason("ENGINE_UNAVAILABLE"), _retry_after(_ENGINE_RETRY_SECONDS)),
        lambda e: "the engine that runs the model failed, or cannot be reached",
    ),
    Row(NotReadyError, StatusCode.UNAVAILABLE, lambda e: (_retry_after(e.retry_after_s),)),
    Row(UnauthenticatedError, StatusCode.UNAUTHENTICATED),
    Row(PermissionDeniedError, StatusCode.PERMISSION_DENIED),
    Row(DeadlineExceededError, StatusCode.DEADLINE_EXCEEDED),
    Row(DecodingCancelledError, StatusCode.CANCELLED),
    Row(
        IndexChecksumError,
        StatusCode.DATA_LOSS,
        lambda e: (_reason("INDEX_CORRUPT", file=e.file),),
        lambda e: f"{e.file}: size or digest differs from the index manifest",
    ),
    _unmet(IndexNotFoundError, "INDEX", "index", lambda e: "the index is not there"),
    _unmet(UnservableIndexError, "INDEX", "index"),
    _unmet(IndexMismatchError, "INDEX_MISMATCH", "index"),
    _unmet(EvidenceMissingError, "EVIDENCE", "index", lambda e: _NO_EVIDENCE),
    Row(
        IndexFormatError,
        StatusCode.FAILED_PRECONDITION,
        lambda e: (_precondition(_format_problem(e)[0], "index", _format_problem(e)[1]),),
        lambda e: _format_problem(e)[1],
    ),
    _unmet(IndexDirectoryError, "INDEX", "index", lambda e: _UNREADABLE),
    _unmet(ModelError, "MODEL", "model"),
    # The rest of decoding: broken logits, an architecture that cannot be decoded exactly.
    _unmet(DecodingError, "MODEL", "model"),
    Row(
        MissingExtraError,
        StatusCode.FAILED_PRECONDITION,
        lambda e: (_precondition("EXTRA", e.extra, str(e)),),
    ),
    _unmet(SourceError, "SOURCE", "file"),
)


def told(error: Exception | None) -> str:
    """Return the text of an error that clients may see, its own may name a path; empty without one."""
    return "" if error is None else failure_of(error, "").message


def failure_of(error: BaseException, request_id: str) -> Failure:
    """Return the status that `error` gives a request.

    An error outside the table is a bug: the caller learns the request id only, and the traceback is logged
    under it (`logged_failure`).
    """
    if isinstance(error, FailedInEngineError):
        return error.failure
    for row in TABLE:
        if isinstance(error, row.error):
            return Failure(row.code, row.message(error), row.details(error))
    return Failure(StatusCode.INTERNAL, f"internal error; request id {request_id}")


_LOG = logging.getLogger(__name__)


def logged_failure(error: Exception, request_id: str) -> Failure:
    """Return the status of `error`; a bug is logged with its traceback under the request id."""
    failure = failure_of(error, request_id)
    if failure.code is StatusCode.INTERNAL and not isinstance(error, FailedInEngineError):
        _LOG.error("request %s failed", request_id, exc_info=error)
    return failure
