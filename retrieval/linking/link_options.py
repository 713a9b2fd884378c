"""Options of a linking run and the job made of them; all of it can be sent to other processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from genret.retrieval.arguments import INT64, check_least, check_words, integer, number
from genret.retrieval.errors import InputError
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.finding.find_options import FindOptions
from genret.retrieval.types import SCORED_METHODS, RequestOptions, with_options

MENTION_SOURCES = ("auto", "given", "found", "generated")
CANDIDATE_SETS = ("auto", "all", "named")
OUTPUT_FORMATS = ("parquet", "jsonl")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How mentions are linked: whatever changes a row of the output, and nothing else.

    Options without a comment are those of `RetrieveRequest`, and mean what they mean there. The evidence is
    asked with the mention alone. Where few entities may be meant, `auto` and `shortlist` score all of them.
    The index's ranking orders the list of `auto`, except for named candidates, which are alike to it: these
    are ordered by name, text and model.
    """

    # "given" by the documents; "found": names of the index; "generated": the model writes the text again with
    # links in it; "auto": given where a document marks any spans (an empty list counts), else found
    mentions: str = "auto"
    find: FindOptions = field(default_factory=FindOptions)  # names that are found
    # Entities that a mention may be linked to: "all"; "named": those with its text as a title or alias (in
    # any letter case), else it is NIL; "auto": "named" for mentions that are found, else "all"
    candidates: str = "auto"
    method: str = "auto"
    k: int = 5  # candidates kept per mention
    beam_size: int | None = None
    decoder: str | None = None
    shortlist_size: int | None = None
    vector_weight: float | None = None
    title_weight: float | None = None
    seed: int = 0  # seed of `disc`
    prompt: str | None = None  # template of the question to the model; None: the checkpoint's for mentions
    context_chars: int | None = None  # characters beside a mention that the model sees; None: the template's
    min_logprob: float | None = None  # a best candidate below it is NIL: the mention stays unlinked
    # The same for `LinkCandidate.probability`, in [0, 1]; a share of those listed needs a k of at least 2
    min_probability: float | None = None
    min_mass: float | None = None  # with `disc`, a mention whose mass is below it is NIL, without candidates
    adaptive: bool = False
    exact: bool = False
    exact_budget: int | None = None
    length_penalty: float = 0.0
    aggregate: str | None = None
    filter: str | None = None
    keep_nil: bool = True  # whether mentions without an entity are written

    def __post_init__(self) -> None:
        check_words(self, mentions=MENTION_SOURCES, candidates=CANDIDATE_SETS)
        check_least(self, context_chars=0)
        if self.min_logprob is not None and not self.min_logprob <= 0:
            raise InputError(
                "min_logprob", f"must be at most 0, as every log-probability is, got {self.min_logprob}"
            )
        if self.min_probability is not None and not 0 <= self.min_probability <= 1:
            raise InputError("min_probability", f"must be in [0, 1], got {self.min_probability}")
        if self.min_probability is not None and self.decoding == "beam" and self.k == 1:
            raise InputError(
                "min_probability",
                f"needs a k of at least 2 with the method {self.method}, as it is a share among those listed "
                "by beam search; got k 1",
            )
        integer("seed", self.seed, *INT64)
        with_options(self.k, self.method, None, self.request_options())

    @property
    def decoding(self) -> str | None:
        """The decoder in force: "beam", "disc", or None with `shortlist`."""
        if self.method == "auto":
            return self.decoder or "beam"
        return None if self.method == "shortlist" else self.method

    @property
    def asks_evidence(self) -> bool:
        """Whether the index's evidence may be asked."""
        return self.method in SCORED_METHODS

    def request_options(self) -> RequestOptions:
        """Return the options of every request, except `k` and `method`."""
        shared = RequestOptions.__annotations__.keys() & LinkOptions.__annotations__.keys()
        asked = {name: getattr(self, name) for name in shared}
        return cast(RequestOptions, {**asked, "seed": self.seed if self.decoding == "disc" else None})


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of a worker's computation; none of them changes which rows come out."""

    index: str  # index directory
    model: str | None = None  # checkpoint directory or hub id; None: the default model of the index
    device: str = "auto"
    dtype: str = "auto"
    engine: str | None = None  # "vllm" or the address of its server; None: the model runs in the worker
    num_threads: int | None = 1  # Torch threads of a worker
    batch_size: int = 32  # mentions per forward
    cache_entries: int = 100_000  # answers kept for mentions that are put to the model in the same words
    verify_digests: bool = True  # whether the index's digests are checked before the run
    cache_dir: str | None = None  # folder where the table of names is kept; None: in memory
    encoder: str | None = None  # new place of the encoder that made the index's vectors; None: where it lay

    def __post_init__(self) -> None:
        check_least(self, batch_size=1, cache_entries=0)


@dataclass(frozen=True, slots=True)
class LinkJob:
    """Everything that a worker, in whatever process on whatever machine, needs to link shards."""

    corpus: CorpusOptions  # where documents come from
    options: LinkOptions  # how mentions are linked
    worker: WorkerOptions  # how a worker computes
    out: str  # output folder
    output_format: str = "parquet"  # one of `OUTPUT_FORMATS`
    index_digest: str = ""  # the index that must be found: a worker that opens another one refuses
    key: str = ""  # run key (digest of inputs, options, index, model), in every record of a finished shard
    index_version: str = ""  # name of the index's version, for the output's metadata
    model_fingerprint: str = ""  # fingerprint of the checkpoint, for the output's metadata
    # Most lines of a shard that may be no documents, else it fails; None: any number.
    max_bad_documents: int | None = None


METHODS = ("greedy", "sample", "beam", "disc")
_MOST = {
    "beam_size": 64,
    "num_draws": 64,
    "max_mention_chars": 10_000,
    "window_tokens": 1 << 16,
    "batch_size": 1024,
}


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of a `MentionGenerator`.

    `method` is "greedy": the likeliest allowed token at every step; "sample": drawn from the allowed ones;
    "beam": the most probable annotation that a beam search finds; or "disc": an unbiased draw from the
    model's own distribution over annotations.
    """

    prompt: str | None = None  # template that asks for links; None: the checkpoint's own, or the built-in one
    method: str = "greedy"
    beam_size: int = 4  # annotations that `beam` follows at once
    num_draws: int = 1  # draws of `disc`
    temperature: float = 1.0  # temperature of `sample` and `disc`
    seed: int = 0  # seed of `sample` and `disc`: the same one gives the same links to the same text
    max_mention_chars: int = 80  # most characters of a mention
    max_mentions: int | None = None  # most mentions of a window; None: any number
    word_boundaries: bool = True  # whether mentions begin and end where words do
    window_tokens: int = 256  # most tokens of a window; fewer where the model has no positions for more
    min_logprob: float | None = None  # a link whose title has a lower log-probability is NIL; None: none is
    filter: str | None = None  # predicate that every linked entity passes; None: all do
    batch_size: int = 16  # windows that are written together

    def __post_init__(self) -> None:
        check_words(self, method=METHODS)
        for name, most in _MOST.items():
            integer(name, getattr(self, name), 1, most)
        integer("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_mentions is not None:
            integer("max_mentions", self.max_mentions, 0, 1 << 16)
        number("temperature", self.temperature, 0.01, 100.0)
        if self.min_logprob is not None and math.isnan(self.min_logprob):
            raise InputError("min_logprob", "must be a number, got nan")
