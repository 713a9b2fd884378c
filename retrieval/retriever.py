"""`Retriever`: an index and a model, opened together, answering queries.

Text in, entities out. It knows prompts, titles and entities; what a decode step is, it leaves to
`decoding`. One retriever is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from decoding.cancellation import CancelToken
from decoding.language_model import LanguageModel
from decoding.title_trie import TitleTrie
from retrieval.arguments import named, sequence
from retrieval.batch_runner import BatchRunner, Job, Reply
from retrieval.compatibility import check_rendering, check_templates
from retrieval.defaults import default_model_dir
from retrieval.errors import InputError
from retrieval.filters.cache import DEFAULT_FILTER_CACHE_BYTES
from retrieval.filters.parser import parse
from retrieval.filters.restriction import Restriction, checked_ids
from retrieval.filters.store import FilterStore
from retrieval.index.reader import Index
from retrieval.limits import Limits
from retrieval.model_opening import load_model
from retrieval.prompt_encoder import PromptEncoder
from retrieval.prompts import CheckpointConfig
from retrieval.text import TextTokenizer
from retrieval.types import Mention, RetrievalResult, RetrieveRequest

DEFAULT_BATCH_SIZE = 32


class Retriever:
    """Answers queries with entities of one index, written by one model.

    Args:
        index: An open index; closed together with the retriever.
        model: The model behind the decoding protocol.
        tokenizer: The model's tokenizer.
        config: Prompt templates and rendering of the checkpoint.
        filter_cache_bytes: Bound on the memory of filters kept for further requests.

    Attributes:
        filters: The filters of the index, those kept among them.

    Raises:
        IndexMismatchError: the index was built for another tokenizer or rendering, or holds token ids
            the model does not have.
        InputError: the bound on filters is negative.
    """

    def __init__(
        self,
        index: Index,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        config: CheckpointConfig | None = None,
        *,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_BYTES,
    ) -> None:
        self.index = index
        self.model = model
        self.tokenizer = tokenizer
        self.config = config or CheckpointConfig()
        index.check_tokenizer(tokenizer, model.vocab_size)
        check_rendering(index, tokenizer, self.config)
        check_templates(tokenizer, self.config, model.vocab_size)
        limits = Limits.of(model)
        self.trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
        self.filters = FilterStore(index, model.device, filter_cache_bytes)
        self._prompts = PromptEncoder(tokenizer, model.vocab_size, limits.prompt_tokens(self.trie.max_depth))
        self._runner = BatchRunner(index, model, self.trie, self.filters, limits)

    @classmethod
    def open(
        cls,
        index: str | Path,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        num_threads: int | None = None,
        verify_digests: bool = True,
        trust_remote_code: bool = False,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_BYTES,
    ) -> Retriever:
        """Open an index directory and load a checkpoint.

        Args:
            index: Index directory, as `build-index` wrote it.
            model: Checkpoint directory or hub id; None: the shipped default model.
            device: "auto", "cpu", "cuda", "cuda:1", ...
            dtype: "auto", "float32", "bfloat16", "float16" or "float64".
            num_threads: Torch threads of this process; None: leave them as they are.
            verify_digests: Check every file's digest, not only sizes and structure.
            trust_remote_code: Run model code that a hub checkpoint brings along.
            filter_cache_bytes: Bound on the memory of filters kept for further requests; one that is larger
                alone is made anew for every batch.

        Raises:
            GenretError: the index or the checkpoint cannot be used, or they do not fit together.
        """
        opened = Index.open(index, verify_digests=verify_digests)
        try:
            place = default_model_dir() if model is None else model
            tokenizer = TextTokenizer.load(place)
            # Of a hub id, `source` is the folder it was fetched into.
            config = CheckpointConfig.load(Path(tokenizer.source))
            opened.check_tokenizer(tokenizer, None)  # before the weights, which take longer
            check_rendering(opened, tokenizer, config)
            loaded = load_model(place, device, dtype, num_threads, trust_remote_code)
            return cls(opened, loaded, tokenizer, config, filter_cache_bytes=filter_cache_bytes)
        except BaseException:
            opened.close()
            raise

    def open_another(self, index: str | Path, *, verify_digests: bool = True) -> Retriever:
        """Open a further index for the same model, which is shared and not loaded again.

        Args:
            index: Index directory, as `build-index` wrote it.
            verify_digests: Check every file's digest, not only sizes and structure.

        Raises:
            GenretError: the index cannot be used, or does not fit the model.
        """
        opened = Index.open(index, verify_digests=verify_digests)
        try:
            return type(self)(
                opened,
                self.model,
                self.tokenizer,
                self.config,
                filter_cache_bytes=self.filters.max_bytes,
            )
        except BaseException:
            opened.close()
            raise

    def __repr__(self) -> str:
        index = self.index
        return (
            f"Retriever({str(index.path)!r}: {index.num_entities} entities, {index.num_rows} rows; "
            f"tokenizer {self.tokenizer.source!r}, model on {self.model.device})"
        )

    def close(self) -> None:
        """Release the index and the filters kept. Idempotent."""
        self.filters.clear()
        self.index.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def retrieve(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        method: str = "beam",
        *,
        beam_size: int | None = None,
        num_draws: int = 4,
        num_samples: int | None = None,
        temperature: float = 1.0,
        top_m: int | None = None,
        seed: int | None = None,
        min_mass: float | None = None,
        adaptive: bool = False,
        prompt: str | None = None,
        filter: str | None = None,
        allow_ids: Iterable[str] | None = None,
        deny_ids: Iterable[str] = (),
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> list[RetrievalResult]:
        """Answer queries, in their order. See `RetrieveRequest` for the options.

        Raises:
            InputError: an option or a query is out of range, a query is too long for the model, or the
                filter does not fit the index.
            ModelError: the model returned broken logits.
        """
        single = isinstance(queries, str)
        texts = sequence("queries", queries, str)
        names = ["query"] if single else [f"queries[{i}]" for i in range(len(texts))]
        allowed, denied = _checked_lists(allow_ids, deny_ids)
        requests = []
        for name, text in zip(names, texts, strict=True):
            with named("query", name):
                requests.append(
                    RetrieveRequest(
                        query=text,
                        k=k,
                        method=method,
                        beam_size=beam_size,
                        num_draws=num_draws,
                        num_samples=num_samples,
                        temperature=temperature,
                        top_m=top_m,
                        seed=seed,
                        min_mass=min_mass,
                        adaptive=adaptive,
                        prompt=prompt,
                        filter=filter,
                        allow_ids=allowed,
                        deny_ids=denied,
                    )
                )
        return self._all_or_error(requests, names, batch_size)

    def link(
        self,
        mentions: Mention | Sequence[Mention],
        k: int = 1,
        method: str = "beam",
        *,
        beam_size: int | None = None,
        seed: int | None = None,
        min_mass: float | None = None,
        adaptive: bool = False,
        filter: str | None = None,
        allow_ids: Iterable[str] | None = None,
        deny_ids: Iterable[str] = (),
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> list[RetrievalResult]:
        """Link mentions in context to entities, in their order, all under one filter.

        Raises:
            InputError: an option is out of range, a mention is empty or too long for the model, or the
                filter does not fit the index.
        """
        single = isinstance(mentions, Mention)
        spans = sequence("mentions", mentions, Mention)
        names = ["mention"] if single else [f"mentions[{i}]" for i in range(len(spans))]
        allowed, denied = _checked_lists(allow_ids, deny_ids)
        requests = []
        for name, mention in zip(names, spans, strict=True):
            with named("mention", name):
                requests.append(
                    self.link_request(
                        mention,
                        k=k,
                        method=method,
                        beam_size=beam_size,
                        seed=seed,
                        min_mass=min_mass,
                        adaptive=adaptive,
                        filter=filter,
                        allow_ids=allowed,
                        deny_ids=denied,
                    )
                )
        return self._all_or_error(requests, names, batch_size)

    def link_request(
        self,
        mention: Mention,
        *,
        k: int = 1,
        method: str = "beam",
        beam_size: int | None = None,
        seed: int | None = None,
        min_mass: float | None = None,
        adaptive: bool = False,
        filter: str | None = None,
        allow_ids: tuple[str, ...] | None = None,
        deny_ids: tuple[str, ...] = (),
    ) -> RetrieveRequest:
        """Return the request that links one mention with the checkpoint's mention template.

        Raises:
            InputError: an option is out of range, or the mention is empty.
        """
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        template = self.config.prompt(self.config.mention_prompt)
        query = template.mention_query(mention)
        return RetrieveRequest(
            query,
            k=k,
            method=method,
            beam_size=beam_size,
            seed=seed,
            min_mass=min_mass,
            adaptive=adaptive,
            prompt=template.name,
            filter=filter,
            allow_ids=allow_ids,
            deny_ids=deny_ids,
        )

    def check_filter(self, filter: str) -> None:
        """Refuse a predicate that no request to this index could use; makes no filter.

        Raises:
            InputError: it is no predicate, or does not fit the index.
        """
        self.filters.check(Restriction(parse(filter)))

    def prompt_tokens(self, request: RetrieveRequest) -> int:
        """Return the request's prompt length in tokens: its share of a batch.

        Raises:
            InputError: the template is unknown, the query is too long for the model, or the filter does not
                fit the index.
        """
        return len(self._prompt(request))

    def warm_up(self) -> None:
        """Answer one query by each method, so that the first real one finds everything in place."""
        for method in ("beam", "disc"):
            self.retrieve("warm-up", k=1, method=method, seed=0, num_samples=1)

    def retrieve_batch(
        self, requests: Sequence[RetrieveRequest], cancel: Sequence[CancelToken | None] | None = None
    ) -> list[Reply]:
        """Answer requests with any mixture of options; what is compatible shares its forwards.

        Args:
            requests: At most as many as fit into memory together.
            cancel: Polled between decode steps, one per request.

        Returns:
            Per request its result, or the error that concerns this request alone.
        """
        tokens = list(cancel) if cancel is not None else [None] * len(requests)
        replies: dict[int, Reply] = {}
        jobs: dict[int, Job] = {}
        for i, (request, token) in enumerate(zip(requests, tokens, strict=True)):
            try:
                jobs[i] = Job(request, self._prompt(request), token)
            except InputError as error:
                replies[i] = error
        replies.update(zip(jobs, self._runner.run(list(jobs.values())), strict=True))
        return [replies[i] for i in range(len(requests))]

    def _all_or_error(
        self, requests: Sequence[RetrieveRequest], names: Sequence[str], batch_size: int
    ) -> list[RetrievalResult]:
        """Answer requests in batches; the first error is raised, with the name of its request."""
        if batch_size < 1:
            raise InputError("batch_size", f"must be at least 1, got {batch_size}")
        prompts = []
        for name, request in zip(names, requests, strict=True):  # before anything is decoded
            with named("query", name):
                prompts.append(self._prompt(request))
        jobs = [Job(request, prompt) for request, prompt in zip(requests, prompts, strict=True)]
        return self._runner.run_all(jobs, names, batch_size)

    def _prompt(self, request: RetrieveRequest) -> list[int]:
        """Return the prompt of a request that can be answered: its filter fits the index too."""
        if request.filter is not None:
            self.filters.check(request.restriction)
        return self._prompts.encode(self.config.prompt(request.prompt), request.query)


def _checked_lists(
    allow_ids: Iterable[str] | None, deny_ids: Iterable[str]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Read lists of ids once, however many requests share them."""
    allowed = None if allow_ids is None else checked_ids("allow_ids", allow_ids)
    return allowed, checked_ids("deny_ids", deny_ids)
