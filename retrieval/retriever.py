"""Opens an index and a model together, and answers queries: text in, entities out (`Retriever`).

It knows prompts, titles and entities; decode steps are left to `decoding`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from genret.decoding.cancellation import CancelToken
from genret.decoding.language_model import LanguageModel
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.arguments import (
    check_count,
    check_keywords,
    check_known,
    documents_options,
    named,
    sequence,
)
from genret.retrieval.checkpoints import find_checkpoint, folder_fingerprint
from genret.retrieval.compatibility import (
    check_default_prompt,
    check_prompt,
    check_templates,
    default_model_of,
    tell_of_default,
)
from genret.retrieval.complete_types import (
    CompleteRequest,
    CompleteResult,
    ModelCompleteOptions,
    ordered_by_model,
    score_request,
)
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.filters.entity_filter import DEFAULT_FILTER_CACHE_BYTES, FilterStore
from genret.retrieval.index.owners import FormOwners
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_GRAMMAR_CACHE_BYTES,
    Limits,
    PrefixStore,
    PromptEncoder,
    load_base,
    load_draft,
    load_model,
)
from genret.retrieval.methods.batches import BatchAnswerer, BatchRunner, Reply, RetrieveJob, answer_prepared
from genret.retrieval.methods.explainer import Explainer, TokenTexts
from genret.retrieval.methods.scored_methods import EntityScorer, ScoreJob, ScoreReply, TitleScorer
from genret.retrieval.prompts import CheckpointConfig, PromptTemplate
from genret.retrieval.ranking.prior import null_prompts, prompts_digest
from genret.retrieval.ranking.ranker import PRIOR, RANKING, Ranker
from genret.retrieval.score_types import ScoreRequest, ScoreResult
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import (
    Disc,
    Entity,
    Mention,
    MethodOptions,
    RequestOptions,
    RetrievalResult,
    RetrieveRequest,
    with_options,
)
from genret.retrieval.vectors.vector_search import VectorProposer

if TYPE_CHECKING:  # answering in JSON is loaded when JSON is first asked for
    from genret.retrieval.answers.answer_types import AnswerOptions, AnswerResult, Schema
    from genret.retrieval.answers.answerer import Answerer
    from genret.retrieval.answers.title_holes import Finder, NamedIndex

_Asked = TypeVar("_Asked", str, Mention)


class SharedAnswerer:
    """The answerer of all retrievers of one model, made on first use; before, nothing of grammars is loaded.

    Safe to use from several threads.
    """

    def __init__(self, make: Callable[[], Answerer]) -> None:
        self._make = make
        self._made: Answerer | None = None
        self._waiting: dict[str, tuple[Index, FilterStore, Finder]] = {}
        self._lock = threading.Lock()

    def add_index(self, name: str, index: Index, filters: FilterStore, find: Finder) -> None:
        """Let schemas name an index (`AnswerEngine.add_index`)."""
        with self._lock:
            if self._made is None:
                self._waiting[name] = (index, filters, find)
            else:
                self._made.engine.add_index(name, index, filters, find)

    def get(self) -> Answerer:
        """Return the answerer, which knows every index that was added."""
        with self._lock:
            if self._made is None:
                made = self._make()
                for name, known in self._waiting.items():
                    made.engine.add_index(name, *known)
                self._waiting.clear()
                self._made = made
            return self._made


# Entities below which names and texts answer well enough that weighing a model can be left out.
_SMALL_CATALOGUE = 1000
_WARM_UP_SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 8}}}


class Retriever:
    """Answers queries with entities of one index, written by one model. Used by one thread at a time.

    Args:
        index: An open index; closed together with the retriever.
        model: The model behind the decoding protocol.
        tokenizer: The model's tokenizer.
        config: Prompt templates and rendering of the checkpoint.
        filter_cache_bytes: Bound on the memory of filters kept for further requests.
        prefixes: Store of the shared prefixes of prompts; None: a new one.
        answerer: Answerer of this model, whose schemas may then name this index too; None: a new one.
        name: As in `open`.
        grammar_cache_bytes: Bound on the memory of grammars kept by a new answerer.
        draft: Draft model of a new answerer.
        is_named: As in `open`.
        ranker: Evidence and ranking of the index, for the methods `shortlist` and `auto`; None: it has none.
        base: Loads the model that writes the answers of a new answerer, with its config: the base of an
            adapter that was taught titles alone; None: `model` writes them.

    Raises:
        IndexMismatchError: the index was built for another tokenizer or rendering, or has unknown token ids.
        InputError: a bound on memory is negative.
    """

    def __init__(
        self,
        index: Index,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        config: CheckpointConfig | None = None,
        *,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_BYTES,
        prefixes: PrefixStore | None = None,
        answerer: SharedAnswerer | None = None,
        name: str | None = None,
        grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES,
        draft: LanguageModel | None = None,
        is_named: bool = True,
        ranker: Ranker | None = None,
        base: Callable[[], tuple[LanguageModel, CheckpointConfig]] | None = None,
    ) -> None:
        self.index = index
        self.model = model
        self.tokenizer = tokenizer
        self.config = config or CheckpointConfig()
        index.check_tokenizer(tokenizer, model.vocab_size)
        check_default_prompt(index, tokenizer, self.config)
        check_templates(tokenizer, self.config, model.vocab_size)
        limits = Limits.of(model)
        self.trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
        self.filters = FilterStore(index, model.device, filter_cache_bytes)
        self._fitting: set[PromptTemplate] = set()  # templates that were found to fit the index
        self._prompts = PromptEncoder(tokenizer, model.vocab_size, limits.prompt_tokens(self.trie.max_depth))
        self.prefixes = PrefixStore(model) if prefixes is None else prefixes
        self._shares_prefixes = prefixes is not None
        explainer = Explainer(index, TokenTexts(tokenizer))
        self.ranker = Ranker.none(index) if ranker is None else ranker
        answering = BatchAnswerer(
            index, model, self.trie, limits, explainer, EntityScorer(index), self.ranker
        )
        self._runner = BatchRunner(answering, self.filters, self.prefixes)
        owners = FormOwners(index, None, self.config.title_weight)
        self._titles = TitleScorer(index, model, tokenizer, limits, self.prefixes, owners)
        if answerer is None:
            check_count("grammar_cache_bytes", grammar_cache_bytes)
            asked = (self.config, self.prefixes, index.end_token_id, grammar_cache_bytes, draft, base)
            answerer = SharedAnswerer(partial(_new_answerer, model, tokenizer, *asked))
        self._answerer = answerer
        self.name = name or index.path.name
        if is_named:
            answerer.add_index(self.name, index, self.filters, self._likeliest)

    @classmethod
    @check_keywords
    def open(
        cls,
        index: str | Path,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        num_threads: int | None = None,
        prompt: str | None = None,
        verify_digests: bool = True,
        trust_remote_code: bool = False,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_BYTES,
        grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES,
        draft_model: str | Path | None = None,
        name: str | None = None,
        is_named: bool = True,
        encoder: str | Path | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> Retriever:
        """Open an index directory and load a checkpoint.

        Args:
            index: Index directory, as `build-index` wrote it.
            model: Checkpoint directory, GGUF file, adapter directory or hub id (see `find_checkpoint`);
                None: the shipped one that the index was built for.
            device: "auto", "cpu", "cuda", "cuda:1", ...
            dtype: "auto", "float32", "bfloat16", "float16" or "float64".
            num_threads: Torch threads of this process; None: leave them as they are.
            prompt: Template of requests that name none; None: the checkpoint's default.
            verify_digests: Check every file's digest, not only sizes and structure.
            trust_remote_code: Run model code that a hub checkpoint brings along.
            filter_cache_bytes: Bound on the memory of filters kept; a larger one is made anew for every
                batch.
            grammar_cache_bytes: Bound on the memory of grammars of JSON answers kept.
            draft_model: Checkpoint of a draft model for JSON answers, with the same tokenizer; None: no
                drafts.
            name: Name of the index in schemas of JSON answers, beside "titles"; None: that of its directory.
            is_named: Whether schemas may name the index from now on; see `named_index`.
            encoder: Place of the encoder that made the index's vectors; None: where it lay then. Evidence
                that cannot be used is no error: see `Ranker.problems`.
            engine: "vllm", or the address of a vLLM server ("http://localhost:8000/v1") that has this
                checkpoint, where that is to run the model; None: here.
            engine_options: Further arguments of `vllm.LLM`, for "vllm".

        Raises:
            GenretError: the index or a checkpoint cannot be used, or they do not fit together.
        """
        if engine is None and engine_options:
            raise InputError("engine_options", "are for an engine, and none is named")
        opened = Index.open(index, verify_digests=verify_digests)
        try:
            place = default_model_of(opened) if model is None else model
            tokenizer = TextTokenizer.load(place)
            # Of a hub id, `source` is the folder it was fetched into.
            config = CheckpointConfig.load(Path(tokenizer.source)).with_prompt(prompt)
            opened.check_tokenizer(tokenizer, None)  # before the weights, which take longer
            check_default_prompt(opened, tokenizer, config)
            draft = base = None
            if engine is None:
                loaded = load_model(place, device, dtype, num_threads, trust_remote_code)
                if config.knows_titles_alone and find_checkpoint(place).adapter is not None:
                    base = partial(load_base, place, loaded, config, dtype, trust_remote_code)
            else:
                from genret.retrieval.engines.vllm_engine import open_engine

                loaded = open_engine(engine, place, dtype, engine_options)
            if draft_model is not None:
                draft = load_draft(draft_model, tokenizer, loaded, dtype, trust_remote_code)
            return cls(
                opened,
                loaded,
                tokenizer,
                config,
                filter_cache_bytes=filter_cache_bytes,
                name=name or Path(index).resolve().name,
                grammar_cache_bytes=grammar_cache_bytes,
                draft=draft,
                is_named=is_named,
                ranker=_opened_ranker(opened, encoder, loaded, tokenizer, config),
                base=base,
            )
        except BaseException as error:
            opened.close()
            if model is None:
                tell_of_default(error)
            raise

    def open_another(
        self,
        index: str | Path,
        *,
        name: str | None = None,
        is_named: bool = True,
        encoder: str | Path | None = None,
    ) -> Retriever:
        """Open a further index for the same model, which is shared with its prefixes and not loaded again.

        Arguments and errors are those of `open`; the index takes the place of another one of its name in
        schemas.
        """
        self._shares_prefixes = True
        opened = Index.open(index)
        try:
            return type(self)(
                opened,
                self.model,
                self.tokenizer,
                self.config,
                filter_cache_bytes=self.filters.cache.max_size,
                prefixes=self.prefixes,
                answerer=self._answerer,
                name=name or Path(index).resolve().name,
                is_named=is_named,
                ranker=_opened_ranker(opened, encoder, self.model, self.tokenizer, self.config),
            )
        except BaseException:
            opened.close()
            raise

    @property
    def answerer(self) -> Answerer:
        """The writer of JSON answers, made on first use and shared by all retrievers of the model."""
        return self._answerer.get()

    @property
    def vectors(self) -> VectorProposer | None:
        """The proposer of entities by vectors; None where the index has none that can be used."""
        return self.ranker.evidence.vectors

    def __repr__(self) -> str:
        index = self.index
        return (
            f"Retriever({str(index.path)!r}: {index.num_entities} entities, {index.num_rows} rows; "
            f"tokenizer {self.tokenizer.name!r}, model on {self.model.device})"
        )

    def close(self) -> None:
        """Release the index and the filters kept, and the prefixes unless others share them. Idempotent."""
        self.filters.cache.clear()
        if not self._shares_prefixes:
            self.prefixes.clear()
        self.index.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @documents_options(RetrieveRequest)
    def retrieve(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        method: str | MethodOptions = "auto",
        *,
        prompt: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **options: Unpack[RequestOptions],
    ) -> list[RetrievalResult]:
        """Answer queries, in their order.

        Args:
            queries: A query, or several.
            k: An option, as of `RetrieveRequest`; `help` lists them all.
            method: Its name, or its object with its own options, as `Beam(exact=True)`.
            prompt: An option.
            batch_size: Most queries that decode together.
            **options: The other options.

        Returns:
            One result per query; `genret.to_arrow` makes one table of them.

        Raises:
            InputError: an option is unknown, it or a query is out of range, a query is too long for the
                model, or the filter does not fit the index.
            ModelError: the model returned broken logits.
        """
        asked = with_options(k, method, prompt, options)
        return self._answer_all("query", queries, str, lambda text: replace(asked, query=text), batch_size)

    @documents_options(RetrieveRequest, skipped=("prompt",))
    def link(
        self,
        mentions: Mention | Sequence[Mention],
        k: int = 1,
        method: str | MethodOptions = "auto",
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **options: Unpack[RequestOptions],
    ) -> list[RetrievalResult]:
        """Link mentions in context to entities, in their order, all with the same options.

        Raises:
            InputError: an option is unknown or out of range, a mention is empty or too long for the model, or
                the filter does not fit the index.
        """
        asked = partial(self.mention_request, asked=with_options(k, method, None, options))
        return self._answer_all("mention", mentions, Mention, asked, batch_size)

    def mention_request(self, mention: Mention, asked: RetrieveRequest) -> RetrieveRequest:
        """Return `asked`, whose query is a placeholder, for one mention; InputError for an empty one."""
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        self._prompts.check_length("mention", mention.mention)
        template = self.config.prompt(self.config.mention_prompt)
        request = replace(asked, query=template.mention_query(mention), prompt=template.name)
        if not request.proposals or request.shortlist_query is not None:
            return request
        return replace(request, shortlist_query=mention.mention)

    @check_keywords
    def score(
        self, query: str | Mention, titles: str | Iterable[str], *, prompt: str | None = None
    ) -> ScoreResult:
        """Score any titles behind a query, all in one pass of the model.

        Titles are tokenised as those of the index are, under the same text policy (NFC, single spaces).

        Args:
            query: The query text, or a mention, which is asked with the checkpoint's mention template.
            titles: From 1 to 10,000 texts, in the catalogue or not, or one.
            prompt: Name of the prompt template; None: the checkpoint's default. Not for a mention.

        Raises:
            InputError: the query or a title cannot be used; a title is named "titles[3]".
            ModelError: the model returned broken logits.
        """
        texts = tuple(sequence("titles", titles, str))
        if isinstance(query, Mention):
            if prompt is not None:
                raise InputError(
                    "prompt", f"is the checkpoint's mention template for a mention, got {prompt!r}"
                )
            asked = self.mention_request(query, RetrieveRequest("-", method="beam"))
            query, prompt = asked.query, asked.prompt
        (reply,) = self.score_batch([ScoreRequest(query, texts, prompt)])
        if not isinstance(reply, ScoreResult):
            raise reply
        return reply

    @documents_options(CompleteRequest)
    def complete(self, prefix: str, k: int = 10, **options: Unpack[ModelCompleteOptions]) -> CompleteResult:
        """Return the entities that a typed prefix may go on to, best first; see `Index.complete`.

        Raises:
            InputError: an option is unknown or out of range, the prefix is too long, or the filter does not
                fit the index.
            ModelError: with the order `model`, the model returned broken logits.
        """
        check_known(options, CompleteRequest)
        request = CompleteRequest(prefix, k, **options)
        result = self.index.completer.complete(request)
        scored = score_request(request, result)
        if scored is None:
            return result
        (reply,) = self.score_batch([scored])
        if not isinstance(reply, ScoreResult):
            raise reply
        return ordered_by_model(request, result, reply)

    def answer(
        self, query: str, schema: Schema | None = None, **options: Unpack[AnswerOptions]
    ) -> AnswerResult:
        """Answer one query with JSON that is valid under a schema; see `Answerer.answer_all` for several.

        Args:
            query: The query text.
            schema: A JSON Schema, as text or as `json.loads` reads one.
            **options: See `AnswerRequest`.

        Raises:
            SchemaRejectedError: the schema cannot be used; names keyword and JSON pointer.
            InputError: an option is out of range, the query is too long, or the answer does not fit.
            ModelError: the model returned broken logits.
        """
        return self.answerer.answer_all([query], schema, titles=self.name, **options)[0]

    def _likeliest(self, query: str, predicate: str | None, k: int) -> list[Entity]:
        """Return the k best entities for a query, with the evidence that the index has."""
        method = "auto" if self.ranker.can_propose else "beam"
        (result,) = self.retrieve([query], k=k, method=method, filter=predicate)
        found = (self.index.entity_by_id(candidate.entity_id) for candidate in result.candidates)
        return [entity for entity in found if entity is not None]

    def check_filter(self, filter: str) -> None:
        """Raise InputError for a predicate that no request to this index could use; makes no filter."""
        self.filters.check(RetrieveRequest("-", filter=filter).restriction)

    def check_method(self, request: RetrieveRequest) -> None:
        """Refuse a request whose method the index cannot serve; costs nothing, from any thread.

        A request under a filter passes: it may allow so few entities that all of them are scored.

        Raises:
            EvidenceMissingError: it is for `shortlist`, and the index has no evidence.
            GenretError: the evidence cannot be used.
        """
        is_open = request.restriction.is_open
        if request.method == "shortlist" and is_open and self.index.num_entities > request.proposals:
            self.ranker.require(self.index)

    def prompt_tokens(self, request: RetrieveRequest) -> int:
        """Return the request's prompt length in tokens: its share of a batch.

        Raises:
            InputError: template or filter do not fit the index, or the query is too long for the model.
            GenretError: as `check_method`.
        """
        return len(self._job(request).prompt)

    def warm_up(self) -> None:
        """Answer one query by each method, so that the first real one finds everything in place."""
        self.answerer.engine.warm_up()
        for step in self.warm_up_steps():
            step()

    def warm_up_steps(self) -> Iterator[Callable[[], object]]:
        """Return the steps of a warm-up, one query each, so that others can be answered in between.

        The grammar engine of JSON answers is not among them: see `AnswerEngine.warm_up`.
        """
        for method in ("beam", Disc(seed=0, num_samples=1)):
            yield partial(self.retrieve, "warm-up", k=1, method=method)
        if self.ranker.can_propose:
            yield partial(self.retrieve, "warm-up", k=1, method="shortlist", shortlist_size=1)
        with suppress(InputError):  # where requests to link are refused
            self.prompt_template(self.config.mention_prompt)
            yield partial(self.link, Mention("warm-up"))
        yield partial(self.answer, "warm-up", _WARM_UP_SCHEMA, max_tokens=64)

    def weighing_advice(self, index: str | Path) -> str | None:
        """Return how to weigh the model on its index, as the caller names that; None: nobody need do so."""
        ranker = self.ranker
        if ranker.is_weighed or not ranker.can_propose or {RANKING, PRIOR} & ranker.problems.keys():
            return None
        advice = "the model was never weighed on this index, and counts little"
        command = f"genret tune {index} --model {self.tokenizer.name}"
        with suppress(GenretError):  # no default model is its own, or none was shipped
            if self.tokenizer.name == str(default_model_of(self.index)):
                command = f"genret tune {index}"
        if self.index.num_entities >= _SMALL_CATALOGUE:
            return f"{advice}: {command}"
        advice += " beside names and texts, as suits a small catalogue; hundreds of queries would weigh it"
        return f"{advice}: {command} --queries FILE"

    def named_index(self) -> NamedIndex:
        """Return the index as schemas may name it, for an `IndexSet`."""
        from genret.retrieval.answers.title_holes import NamedIndex

        return NamedIndex(self.name, self.index, self.filters, self._likeliest)

    def retrieve_batch(
        self, requests: Sequence[RetrieveRequest], cancel: Sequence[CancelToken | None] | None = None
    ) -> list[Reply]:
        """Answer requests with any mixture of options; compatible ones share their forwards.

        Args:
            requests: At most as many as fit into memory together.
            cancel: Polled between decode steps, one per request.

        Returns:
            Per request its result, or its own error.
        """
        return answer_prepared(requests, cancel, self._job, self._runner.run)

    def score_batch(
        self, requests: Sequence[ScoreRequest], cancel: Sequence[CancelToken | None] | None = None
    ) -> list[ScoreReply]:
        """Score the titles of several requests together; arguments and result as of `retrieve_batch`."""
        return answer_prepared(requests, cancel, self._score_job, self._titles.run)

    def _answer_all(
        self,
        one: str,
        asked: _Asked | Sequence[_Asked],
        kind: type[_Asked],
        request_of: Callable[[_Asked], RetrieveRequest],
        batch_size: int,
    ) -> list[RetrievalResult]:
        """Answer one item or several in batches; the first error is raised, with the name of its item."""
        check_count("batch_size", batch_size, 1)
        many = "queries" if one == "query" else "mentions"
        items = sequence(many, asked, kind)
        places = [one] if isinstance(asked, kind) else [f"{many}[{i}]" for i in range(len(items))]
        jobs = []
        for place, item in zip(places, items, strict=True):  # before anything is decoded
            with named(one, place), named("query", place):
                jobs.append(self._job(request_of(item)))
        return self._runner.run_all(jobs, places, batch_size)

    def _job(self, request: RetrieveRequest, cancel: CancelToken | None = None) -> RetrieveJob:
        """Check a request, its filter and its method against the index, and encode its prompt."""
        if request.filter is not None:
            self.filters.check(request.restriction)
        self.check_method(request)
        template = self.prompt_template(request.prompt)
        prompt = self._prompts.encode(template, request.query)
        if request.shortlist_query is not None:
            self._prompts.check_length("shortlist_query", request.shortlist_query)
        if request.title_weight is None:
            request = replace(request, title_weight=self.config.title_weight)
        num_shared = self._prompts.num_shared(template)
        return RetrieveJob(request, cancel=cancel, prompt=prompt, num_shared=num_shared)

    def prompt_template(self, name: str | None) -> PromptTemplate:
        """Return a template (None: the default); InputError if it is unknown or does not fit the index."""
        template = self.config.prompt(name)
        if template not in self._fitting:
            check_prompt(self.index, self.tokenizer, self.config, template)
            self._fitting.add(template)
        return template

    def _score_job(self, request: ScoreRequest, cancel: CancelToken | None = None) -> ScoreJob:
        template = self.prompt_template(request.prompt)
        prompt = self._prompts.encode(template, request.query)
        rows = self._titles.rows(request.titles, cancel)
        return ScoreJob(request, prompt, rows, self._prompts.num_shared(template), cancel)


def _new_answerer(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    config: CheckpointConfig,
    prefixes: PrefixStore,
    end_token_id: int,
    grammar_cache_bytes: int,
    draft: LanguageModel | None,
    base: Callable[[], tuple[LanguageModel, CheckpointConfig]] | None,
) -> Answerer:
    from genret.retrieval.answers.answerer import Answerer
    from genret.retrieval.answers.schemas import AnswerEngine

    shortlists = config.knows_titles_alone
    if base is not None:
        model, config = base()
        prefixes = PrefixStore(model)
    engine = AnswerEngine(tokenizer, end_token_id, model.vocab_size, grammar_cache_bytes)
    return Answerer(model, tokenizer, config, prefixes, engine, draft, shortlists)


def _opened_ranker(
    index: Index,
    encoder: str | Path | None,
    model: LanguageModel,
    tokenizer: TextTokenizer,
    config: CheckpointConfig,
) -> Ranker:
    """Open the evidence and the ranking of an index for a model, with the prior of its default template."""
    prompts = prompts_digest(null_prompts(config, tokenizer))
    fingerprint = partial(folder_fingerprint, Path(tokenizer.source))
    return Ranker.open(index, encoder, str(model.device), fingerprint, prompts)
