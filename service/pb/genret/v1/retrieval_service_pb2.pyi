from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetrievalMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETRIEVAL_METHOD_UNSPECIFIED: _ClassVar[RetrievalMethod]
    RETRIEVAL_METHOD_BEAM: _ClassVar[RetrievalMethod]
    RETRIEVAL_METHOD_DISC: _ClassVar[RetrievalMethod]
    RETRIEVAL_METHOD_SHORTLIST: _ClassVar[RetrievalMethod]
    RETRIEVAL_METHOD_AUTO: _ClassVar[RetrievalMethod]

class Aggregation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATION_UNSPECIFIED: _ClassVar[Aggregation]
    AGGREGATION_SUM: _ClassVar[Aggregation]
    AGGREGATION_MAX: _ClassVar[Aggregation]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_OK: _ClassVar[FinishReason]
    FINISH_REASON_NO_MATCH: _ClassVar[FinishReason]

class ExplanationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPLANATION_STATE_UNSPECIFIED: _ClassVar[ExplanationState]
    EXPLANATION_STATE_EXPANDED: _ClassVar[ExplanationState]
    EXPLANATION_STATE_PRUNED: _ClassVar[ExplanationState]
    EXPLANATION_STATE_FINISHED: _ClassVar[ExplanationState]
    EXPLANATION_STATE_CLOSED: _ClassVar[ExplanationState]

class AnswerMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_METHOD_UNSPECIFIED: _ClassVar[AnswerMethod]
    ANSWER_METHOD_GREEDY: _ClassVar[AnswerMethod]
    ANSWER_METHOD_SAMPLE: _ClassVar[AnswerMethod]
    ANSWER_METHOD_BEAM: _ClassVar[AnswerMethod]
    ANSWER_METHOD_DISC: _ClassVar[AnswerMethod]

class AnswerWhitespace(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_WHITESPACE_UNSPECIFIED: _ClassVar[AnswerWhitespace]
    ANSWER_WHITESPACE_SPACED: _ClassVar[AnswerWhitespace]
    ANSWER_WHITESPACE_COMPACT: _ClassVar[AnswerWhitespace]
    ANSWER_WHITESPACE_FLEXIBLE: _ClassVar[AnswerWhitespace]

class PropertyOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROPERTY_ORDER_UNSPECIFIED: _ClassVar[PropertyOrder]
    PROPERTY_ORDER_SCHEMA: _ClassVar[PropertyOrder]
    PROPERTY_ORDER_ANY: _ClassVar[PropertyOrder]

class FormatPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_POLICY_UNSPECIFIED: _ClassVar[FormatPolicy]
    FORMAT_POLICY_ASSERT: _ClassVar[FormatPolicy]
    FORMAT_POLICY_ANNOTATE: _ClassVar[FormatPolicy]

class ExtraProperties(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXTRA_PROPERTIES_UNSPECIFIED: _ClassVar[ExtraProperties]
    EXTRA_PROPERTIES_DECLARED: _ClassVar[ExtraProperties]
    EXTRA_PROPERTIES_ALLOWED: _ClassVar[ExtraProperties]

class CompletionOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPLETION_ORDER_UNSPECIFIED: _ClassVar[CompletionOrder]
    COMPLETION_ORDER_WEIGHT: _ClassVar[CompletionOrder]
    COMPLETION_ORDER_MODEL: _ClassVar[CompletionOrder]
RETRIEVAL_METHOD_UNSPECIFIED: RetrievalMethod
RETRIEVAL_METHOD_BEAM: RetrievalMethod
RETRIEVAL_METHOD_DISC: RetrievalMethod
RETRIEVAL_METHOD_SHORTLIST: RetrievalMethod
RETRIEVAL_METHOD_AUTO: RetrievalMethod
AGGREGATION_UNSPECIFIED: Aggregation
AGGREGATION_SUM: Aggregation
AGGREGATION_MAX: Aggregation
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_OK: FinishReason
FINISH_REASON_NO_MATCH: FinishReason
EXPLANATION_STATE_UNSPECIFIED: ExplanationState
EXPLANATION_STATE_EXPANDED: ExplanationState
EXPLANATION_STATE_PRUNED: ExplanationState
EXPLANATION_STATE_FINISHED: ExplanationState
EXPLANATION_STATE_CLOSED: ExplanationState
ANSWER_METHOD_UNSPECIFIED: AnswerMethod
ANSWER_METHOD_GREEDY: AnswerMethod
ANSWER_METHOD_SAMPLE: AnswerMethod
ANSWER_METHOD_BEAM: AnswerMethod
ANSWER_METHOD_DISC: AnswerMethod
ANSWER_WHITESPACE_UNSPECIFIED: AnswerWhitespace
ANSWER_WHITESPACE_SPACED: AnswerWhitespace
ANSWER_WHITESPACE_COMPACT: AnswerWhitespace
ANSWER_WHITESPACE_FLEXIBLE: AnswerWhitespace
PROPERTY_ORDER_UNSPECIFIED: PropertyOrder
PROPERTY_ORDER_SCHEMA: PropertyOrder
PROPERTY_ORDER_ANY: PropertyOrder
FORMAT_POLICY_UNSPECIFIED: FormatPolicy
FORMAT_POLICY_ASSERT: FormatPolicy
FORMAT_POLICY_ANNOTATE: FormatPolicy
EXTRA_PROPERTIES_UNSPECIFIED: ExtraProperties
EXTRA_PROPERTIES_DECLARED: ExtraProperties
EXTRA_PROPERTIES_ALLOWED: ExtraProperties
COMPLETION_ORDER_UNSPECIFIED: CompletionOrder
COMPLETION_ORDER_WEIGHT: CompletionOrder
COMPLETION_ORDER_MODEL: CompletionOrder

class RetrieveRequest(_message.Message):
    __slots__ = ("index", "query", "k", "method", "beam_size", "num_draws", "num_samples", "temperature", "top_m", "seed", "prompt_template", "filter", "allow_entity_ids", "deny_entity_ids", "min_mass", "adaptive", "exact", "exact_budget", "length_penalty", "aggregation", "explain", "shortlist_size", "decoder", "vector_weight", "shortlist_query", "title_weight")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_M_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ALLOW_ENTITY_IDS_FIELD_NUMBER: _ClassVar[int]
    DENY_ENTITY_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_MASS_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    EXACT_BUDGET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_SIZE_FIELD_NUMBER: _ClassVar[int]
    DECODER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_QUERY_FIELD_NUMBER: _ClassVar[int]
    TITLE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    index: str
    query: str
    k: int
    method: RetrievalMethod
    beam_size: int
    num_draws: int
    num_samples: int
    temperature: float
    top_m: int
    seed: int
    prompt_template: str
    filter: str
    allow_entity_ids: EntityIds
    deny_entity_ids: _containers.RepeatedScalarFieldContainer[str]
    min_mass: float
    adaptive: bool
    exact: bool
    exact_budget: int
    length_penalty: float
    aggregation: Aggregation
    explain: bool
    shortlist_size: int
    decoder: RetrievalMethod
    vector_weight: float
    shortlist_query: str
    title_weight: float
    def __init__(self, index: _Optional[str] = ..., query: _Optional[str] = ..., k: _Optional[int] = ..., method: _Optional[_Union[RetrievalMethod, str]] = ..., beam_size: _Optional[int] = ..., num_draws: _Optional[int] = ..., num_samples: _Optional[int] = ..., temperature: _Optional[float] = ..., top_m: _Optional[int] = ..., seed: _Optional[int] = ..., prompt_template: _Optional[str] = ..., filter: _Optional[str] = ..., allow_entity_ids: _Optional[_Union[EntityIds, _Mapping]] = ..., deny_entity_ids: _Optional[_Iterable[str]] = ..., min_mass: _Optional[float] = ..., adaptive: bool = ..., exact: bool = ..., exact_budget: _Optional[int] = ..., length_penalty: _Optional[float] = ..., aggregation: _Optional[_Union[Aggregation, str]] = ..., explain: bool = ..., shortlist_size: _Optional[int] = ..., decoder: _Optional[_Union[RetrievalMethod, str]] = ..., vector_weight: _Optional[float] = ..., shortlist_query: _Optional[str] = ..., title_weight: _Optional[float] = ...) -> None: ...

class EntityIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class MetadataValue(_message.Message):
    __slots__ = ("string_value", "int_value", "double_value", "bool_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    int_value: int
    double_value: float
    bool_value: bool
    def __init__(self, string_value: _Optional[str] = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., bool_value: bool = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("rank", "entity_id", "title", "surface", "logprob", "probability", "metadata", "score", "similarity", "shares")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetadataValue, _Mapping]] = ...) -> None: ...
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    SURFACE_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    entity_id: str
    title: str
    surface: str
    logprob: float
    probability: float
    metadata: _containers.MessageMap[str, MetadataValue]
    score: float
    similarity: float
    shares: _containers.ScalarMap[str, float]
    def __init__(self, rank: _Optional[int] = ..., entity_id: _Optional[str] = ..., title: _Optional[str] = ..., surface: _Optional[str] = ..., logprob: _Optional[float] = ..., probability: _Optional[float] = ..., metadata: _Optional[_Mapping[str, MetadataValue]] = ..., score: _Optional[float] = ..., similarity: _Optional[float] = ..., shares: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ms", "prefill_ms", "decode_ms", "total_ms", "shortlist_ms", "score_ms")
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_MS_FIELD_NUMBER: _ClassVar[int]
    SCORE_MS_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    total_ms: float
    shortlist_ms: float
    score_ms: float
    def __init__(self, queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., shortlist_ms: _Optional[float] = ..., score_ms: _Optional[float] = ...) -> None: ...

class KvUsage(_message.Message):
    __slots__ = ("peak_bytes", "per_branch_bytes", "saved_bytes", "shared_prefix_bytes", "num_collections")
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PER_BRANCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_PREFIX_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    peak_bytes: int
    per_branch_bytes: int
    saved_bytes: int
    shared_prefix_bytes: int
    num_collections: int
    def __init__(self, peak_bytes: _Optional[int] = ..., per_branch_bytes: _Optional[int] = ..., saved_bytes: _Optional[int] = ..., shared_prefix_bytes: _Optional[int] = ..., num_collections: _Optional[int] = ...) -> None: ...

class IndexRef(_message.Message):
    __slots__ = ("name", "version", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class RetrieveResponse(_message.Message):
    __slots__ = ("candidates", "finish_reason", "method", "certified", "mass", "mass_stderr", "num_draws", "num_accepted", "num_steps", "seed", "timings", "index", "mass_lower_bound", "mass_upper_bound", "num_nodes", "abstained", "kv_usage", "num_exact_nodes", "explanation", "num_scored", "shortlist_size", "nothing_fits", "missing_evidence")
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    MASS_STDERR_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MASS_LOWER_BOUND_FIELD_NUMBER: _ClassVar[int]
    MASS_UPPER_BOUND_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_EXACT_NODES_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_SIZE_FIELD_NUMBER: _ClassVar[int]
    NOTHING_FITS_FIELD_NUMBER: _ClassVar[int]
    MISSING_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    finish_reason: FinishReason
    method: RetrievalMethod
    certified: bool
    mass: float
    mass_stderr: float
    num_draws: int
    num_accepted: int
    num_steps: int
    seed: int
    timings: Timings
    index: IndexRef
    mass_lower_bound: float
    mass_upper_bound: float
    num_nodes: int
    abstained: bool
    kv_usage: KvUsage
    num_exact_nodes: int
    explanation: Explanation
    num_scored: int
    shortlist_size: int
    nothing_fits: float
    missing_evidence: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., method: _Optional[_Union[RetrievalMethod, str]] = ..., certified: bool = ..., mass: _Optional[float] = ..., mass_stderr: _Optional[float] = ..., num_draws: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_steps: _Optional[int] = ..., seed: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., index: _Optional[_Union[IndexRef, _Mapping]] = ..., mass_lower_bound: _Optional[float] = ..., mass_upper_bound: _Optional[float] = ..., num_nodes: _Optional[int] = ..., abstained: bool = ..., kv_usage: _Optional[_Union[KvUsage, _Mapping]] = ..., num_exact_nodes: _Optional[int] = ..., explanation: _Optional[_Union[Explanation, _Mapping]] = ..., num_scored: _Optional[int] = ..., shortlist_size: _Optional[int] = ..., nothing_fits: _Optional[float] = ..., missing_evidence: _Optional[_Iterable[str]] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("nodes", "draws", "truncated")
    NODES_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[ExplanationNode]
    draws: _containers.RepeatedCompositeFieldContainer[ExplanationDraw]
    truncated: bool
    def __init__(self, nodes: _Optional[_Iterable[_Union[ExplanationNode, _Mapping]]] = ..., draws: _Optional[_Iterable[_Union[ExplanationDraw, _Mapping]]] = ..., truncated: bool = ...) -> None: ...

class ExplanationNode(_message.Message):
    __slots__ = ("parent", "depth", "token_id", "text", "logprob", "total_logprob", "valid_mass", "num_valid", "state", "candidate_rank")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    VALID_MASS_FIELD_NUMBER: _ClassVar[int]
    NUM_VALID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_RANK_FIELD_NUMBER: _ClassVar[int]
    parent: int
    depth: int
    token_id: int
    text: str
    logprob: float
    total_logprob: float
    valid_mass: float
    num_valid: int
    state: ExplanationState
    candidate_rank: int
    def __init__(self, parent: _Optional[int] = ..., depth: _Optional[int] = ..., token_id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ..., total_logprob: _Optional[float] = ..., valid_mass: _Optional[float] = ..., num_valid: _Optional[int] = ..., state: _Optional[_Union[ExplanationState, str]] = ..., candidate_rank: _Optional[int] = ...) -> None: ...

class ExplanationDraw(_message.Message):
    __slots__ = ("sample", "draw", "node", "valid_mass", "acceptance_probability", "accepted", "chosen")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    DRAW_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VALID_MASS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    sample: int
    draw: int
    node: int
    valid_mass: float
    acceptance_probability: float
    accepted: bool
    chosen: bool
    def __init__(self, sample: _Optional[int] = ..., draw: _Optional[int] = ..., node: _Optional[int] = ..., valid_mass: _Optional[float] = ..., acceptance_probability: _Optional[float] = ..., accepted: bool = ..., chosen: bool = ...) -> None: ...

class RetrieveStreamRequest(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: RetrieveRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[RetrieveRequest, _Mapping]] = ...) -> None: ...

class RetrieveStreamResponse(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: RetrieveResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[RetrieveResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Mention(_message.Message):
    __slots__ = ("mention", "left", "right")
    MENTION_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    mention: str
    left: str
    right: str
    def __init__(self, mention: _Optional[str] = ..., left: _Optional[str] = ..., right: _Optional[str] = ...) -> None: ...

class LinkRequest(_message.Message):
    __slots__ = ("index", "mentions", "options")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MENTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    index: str
    mentions: _containers.RepeatedCompositeFieldContainer[Mention]
    options: RetrieveRequest
    def __init__(self, index: _Optional[str] = ..., mentions: _Optional[_Iterable[_Union[Mention, _Mapping]]] = ..., options: _Optional[_Union[RetrieveRequest, _Mapping]] = ...) -> None: ...

class LinkResult(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: RetrieveResponse
    error: _status_pb2.Status
    def __init__(self, response: _Optional[_Union[RetrieveResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class LinkResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LinkResult]
    def __init__(self, results: _Optional[_Iterable[_Union[LinkResult, _Mapping]]] = ...) -> None: ...

class BatchRetrieveRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RetrieveRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[RetrieveRequest, _Mapping]]] = ...) -> None: ...

class BatchRetrieveResult(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: RetrieveResponse
    error: _status_pb2.Status
    def __init__(self, response: _Optional[_Union[RetrieveResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class BatchRetrieveResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BatchRetrieveResult]
    def __init__(self, results: _Optional[_Iterable[_Union[BatchRetrieveResult, _Mapping]]] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("index", "query", "schema_json", "schema_name", "method", "max_tokens", "temperature", "seed", "beam_size", "num_draws", "whitespace", "property_order", "formats", "extra_properties", "forced_spans", "prompt_template", "shortlist", "end_repetition")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWS_FIELD_NUMBER: _ClassVar[int]
    WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_ORDER_FIELD_NUMBER: _ClassVar[int]
    FORMATS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FORCED_SPANS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_FIELD_NUMBER: _ClassVar[int]
    END_REPETITION_FIELD_NUMBER: _ClassVar[int]
    index: str
    query: str
    schema_json: str
    schema_name: str
    method: AnswerMethod
    max_tokens: int
    temperature: float
    seed: int
    beam_size: int
    num_draws: int
    whitespace: AnswerWhitespace
    property_order: PropertyOrder
    formats: FormatPolicy
    extra_properties: ExtraProperties
    forced_spans: bool
    prompt_template: str
    shortlist: int
    end_repetition: bool
    def __init__(self, index: _Optional[str] = ..., query: _Optional[str] = ..., schema_json: _Optional[str] = ..., schema_name: _Optional[str] = ..., method: _Optional[_Union[AnswerMethod, str]] = ..., max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ..., beam_size: _Optional[int] = ..., num_draws: _Optional[int] = ..., whitespace: _Optional[_Union[AnswerWhitespace, str]] = ..., property_order: _Optional[_Union[PropertyOrder, str]] = ..., formats: _Optional[_Union[FormatPolicy, str]] = ..., extra_properties: _Optional[_Union[ExtraProperties, str]] = ..., forced_spans: bool = ..., prompt_template: _Optional[str] = ..., shortlist: _Optional[int] = ..., end_repetition: bool = ...) -> None: ...

class Entity(_message.Message):
    __slots__ = ("entity_id", "title", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MetadataValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetadataValue, _Mapping]] = ...) -> None: ...
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    entity_id: str
    title: str
    metadata: _containers.MessageMap[str, MetadataValue]
    def __init__(self, entity_id: _Optional[str] = ..., title: _Optional[str] = ..., metadata: _Optional[_Mapping[str, MetadataValue]] = ...) -> None: ...

class AnswerEntity(_message.Message):
    __slots__ = ("pointer", "index", "title", "entities", "shares")
    POINTER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    pointer: str
    index: str
    title: str
    entities: _containers.RepeatedCompositeFieldContainer[Entity]
    shares: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, pointer: _Optional[str] = ..., index: _Optional[str] = ..., title: _Optional[str] = ..., entities: _Optional[_Iterable[_Union[Entity, _Mapping]]] = ..., shares: _Optional[_Iterable[float]] = ...) -> None: ...

class AnswerResponse(_message.Message):
    __slots__ = ("json", "entities", "logprob", "method", "num_tokens", "num_forced", "num_drafted", "num_accepted", "num_forwards", "seed", "schema_digest", "compile_ms", "mass", "mass_stderr", "timings", "index", "kv_usage")
    JSON_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FORCED_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMPILE_MS_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    MASS_STDERR_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    json: str
    entities: _containers.RepeatedCompositeFieldContainer[AnswerEntity]
    logprob: float
    method: AnswerMethod
    num_tokens: int
    num_forced: int
    num_drafted: int
    num_accepted: int
    num_forwards: int
    seed: int
    schema_digest: str
    compile_ms: float
    mass: float
    mass_stderr: float
    timings: Timings
    index: IndexRef
    kv_usage: KvUsage
    def __init__(self, json: _Optional[str] = ..., entities: _Optional[_Iterable[_Union[AnswerEntity, _Mapping]]] = ..., logprob: _Optional[float] = ..., method: _Optional[_Union[AnswerMethod, str]] = ..., num_tokens: _Optional[int] = ..., num_forced: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_forwards: _Optional[int] = ..., seed: _Optional[int] = ..., schema_digest: _Optional[str] = ..., compile_ms: _Optional[float] = ..., mass: _Optional[float] = ..., mass_stderr: _Optional[float] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., index: _Optional[_Union[IndexRef, _Mapping]] = ..., kv_usage: _Optional[_Union[KvUsage, _Mapping]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("index", "query", "mention", "titles", "prompt_template")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MENTION_FIELD_NUMBER: _ClassVar[int]
    TITLES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    index: str
    query: str
    mention: Mention
    titles: _containers.RepeatedScalarFieldContainer[str]
    prompt_template: str
    def __init__(self, index: _Optional[str] = ..., query: _Optional[str] = ..., mention: _Optional[_Union[Mention, _Mapping]] = ..., titles: _Optional[_Iterable[str]] = ..., prompt_template: _Optional[str] = ...) -> None: ...

class TitleScore(_message.Message):
    __slots__ = ("title", "logprob", "probability", "num_tokens", "entity_ids", "entity_shares")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_IDS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_SHARES_FIELD_NUMBER: _ClassVar[int]
    title: str
    logprob: float
    probability: float
    num_tokens: int
    entity_ids: _containers.RepeatedScalarFieldContainer[str]
    entity_shares: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, title: _Optional[str] = ..., logprob: _Optional[float] = ..., probability: _Optional[float] = ..., num_tokens: _Optional[int] = ..., entity_ids: _Optional[_Iterable[str]] = ..., entity_shares: _Optional[_Iterable[float]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "num_nodes", "timings", "index", "kv_usage")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[TitleScore]
    num_nodes: int
    timings: Timings
    index: IndexRef
    kv_usage: KvUsage
    def __init__(self, scores: _Optional[_Iterable[_Union[TitleScore, _Mapping]]] = ..., num_nodes: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., index: _Optional[_Union[IndexRef, _Mapping]] = ..., kv_usage: _Optional[_Union[KvUsage, _Mapping]] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("index", "prefix", "k", "order", "prompt_template", "filter", "allow_entity_ids", "deny_entity_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ALLOW_ENTITY_IDS_FIELD_NUMBER: _ClassVar[int]
    DENY_ENTITY_IDS_FIELD_NUMBER: _ClassVar[int]
    index: str
    prefix: str
    k: int
    order: CompletionOrder
    prompt_template: str
    filter: str
    allow_entity_ids: EntityIds
    deny_entity_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[str] = ..., prefix: _Optional[str] = ..., k: _Optional[int] = ..., order: _Optional[_Union[CompletionOrder, str]] = ..., prompt_template: _Optional[str] = ..., filter: _Optional[str] = ..., allow_entity_ids: _Optional[_Union[EntityIds, _Mapping]] = ..., deny_entity_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class MatchedSpan(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("entity_id", "title", "form", "spans", "errors", "weight", "logprob")
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    entity_id: str
    title: str
    form: str
    spans: _containers.RepeatedCompositeFieldContainer[MatchedSpan]
    errors: int
    weight: float
    logprob: float
    def __init__(self, entity_id: _Optional[str] = ..., title: _Optional[str] = ..., form: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[MatchedSpan, _Mapping]]] = ..., errors: _Optional[int] = ..., weight: _Optional[float] = ..., logprob: _Optional[float] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ("completions", "timings", "index", "kv_usage")
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    timings: Timings
    index: IndexRef
    kv_usage: KvUsage
    def __init__(self, completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., index: _Optional[_Union[IndexRef, _Mapping]] = ..., kv_usage: _Optional[_Union[KvUsage, _Mapping]] = ...) -> None: ...
