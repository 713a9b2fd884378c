import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Index(_message.Message):
    __slots__ = ("name", "version", "digest", "num_rows", "num_entities", "model", "device", "is_default", "loaded_at", "columns", "max_title_tokens", "vectors", "evidence", "ranking")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_ENTITIES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MAX_TITLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    RANKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    num_rows: int
    num_entities: int
    model: str
    device: str
    is_default: bool
    loaded_at: _timestamp_pb2.Timestamp
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    max_title_tokens: int
    vectors: Vectors
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    ranking: Ranking
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., num_rows: _Optional[int] = ..., num_entities: _Optional[int] = ..., model: _Optional[str] = ..., device: _Optional[str] = ..., is_default: bool = ..., loaded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., max_title_tokens: _Optional[int] = ..., vectors: _Optional[_Union[Vectors, _Mapping]] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., ranking: _Optional[_Union[Ranking, _Mapping]] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("kind", "count", "bytes", "problem")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    kind: str
    count: int
    bytes: int
    problem: str
    def __init__(self, kind: _Optional[str] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class Ranking(_message.Message):
    __slots__ = ("fitted", "fitted_with_model", "queries", "num_queries", "problem")
    FITTED_FIELD_NUMBER: _ClassVar[int]
    FITTED_WITH_MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    fitted: bool
    fitted_with_model: bool
    queries: str
    num_queries: int
    problem: str
    def __init__(self, fitted: bool = ..., fitted_with_model: bool = ..., queries: _Optional[str] = ..., num_queries: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class Vectors(_message.Message):
    __slots__ = ("method", "kind", "dimensions", "count", "bytes", "recall", "usable", "problem")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    USABLE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    method: str
    kind: str
    dimensions: int
    count: int
    bytes: int
    recall: float
    usable: bool
    problem: str
    def __init__(self, method: _Optional[str] = ..., kind: _Optional[str] = ..., dimensions: _Optional[int] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ..., recall: _Optional[float] = ..., usable: bool = ..., problem: _Optional[str] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class ListIndexesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListIndexesResponse(_message.Message):
    __slots__ = ("indexes",)
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedCompositeFieldContainer[Index]
    def __init__(self, indexes: _Optional[_Iterable[_Union[Index, _Mapping]]] = ...) -> None: ...

class GetIndexRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetIndexResponse(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: Index
    def __init__(self, index: _Optional[_Union[Index, _Mapping]] = ...) -> None: ...

class ReloadIndexRequest(_message.Message):
    __slots__ = ("name", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ...) -> None: ...

class ReloadIndexResponse(_message.Message):
    __slots__ = ("index", "previous_version", "reloaded", "open_ms", "warm_up_ms")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELOADED_FIELD_NUMBER: _ClassVar[int]
    OPEN_MS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_MS_FIELD_NUMBER: _ClassVar[int]
    index: Index
    previous_version: str
    reloaded: bool
    open_ms: float
    warm_up_ms: float
    def __init__(self, index: _Optional[_Union[Index, _Mapping]] = ..., previous_version: _Optional[str] = ..., reloaded: bool = ..., open_ms: _Optional[float] = ..., warm_up_ms: _Optional[float] = ...) -> None: ...
