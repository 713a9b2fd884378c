"""Grammar engines behind one interface: ours, xgrammar and llguidance, over the same tokenizer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary

_END_TOKEN = "<|endoftext|>"
_LIMITS = (
    *("max_items_in_row", "initial_lexer_fuel", "step_lexer_fuel", "step_max_items"),
    *("max_lexer_states", "max_grammar_size"),
)


class RefusedError(Exception):
    """An engine does not compile a schema; the text says why."""


class Matcher(Protocol):
    """One walk through one document."""

    def mask(self) -> object:
        """Make the mask of the next token available."""

    def allows(self, token: int) -> bool:
        """Whether the mask made last allows a token."""

    def advance(self, token: int) -> bool:
        """Take a token; False where it is refused."""

    def is_complete(self) -> bool:
        """Whether the document may end here."""


class Engine(Protocol):
    """Compiles schemas."""

    name: str

    def compile(self, schema: str) -> Callable[[], Matcher]:
        """Compile a schema anew and return what starts a walk. Raises RefusedError."""


class TokenizerFile:
    """The tokenizer of a `tokenizer.json` for all engines; an end token is added where it has none."""

    def __init__(self, file: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(file))
        if self.tokenizer.token_to_id(_END_TOKEN) is None:
            self.tokenizer.add_special_tokens([_END_TOKEN])
        self.text = self.tokenizer.to_str()
        self.end_token_id = int(self.tokenizer.token_to_id(_END_TOKEN))
        self.vocab_size = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a document."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


class _OurMatcher:
    __slots__ = ("_allowed", "_grammar", "_state")

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._state = grammar.start
        self._allowed: Any = None

    def mask(self) -> object:
        self._allowed = self._grammar.mask(self._state)
        return self._allowed

    def allows(self, token: int) -> bool:
        return bool(int(self._allowed[token >> 5]) >> (token & 31) & 1)

    def advance(self, token: int) -> bool:
        self._state = self._grammar.advance(self._state, token)
        return self._state >= 0

    def is_complete(self) -> bool:
        return self._grammar.is_complete(self._state)


class Ours:
    """genret's grammars; leaves may be those of another engine, else they are made and warmed up."""

    name = "genret"

    def __init__(
        self, file: TokenizerFile, options: GrammarOptions | None = None, leaves: Leaves | None = None
    ) -> None:
        self._options = options or GrammarOptions()
        if leaves is None:
            leaves = Leaves(Vocabulary.from_tokenizer(file.text, file.end_token_id, file.vocab_size))
            leaves.warm_up()
        self.leaves = leaves

    def compile(self, schema: str) -> Callable[[], Matcher]:
        """Compile a schema; see `Engine`."""
        try:
            grammar = compile_schema(schema, self.leaves, self._options)
        except GrammarError as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        return lambda: _OurMatcher(grammar)


class _PeerMatcher:
    """Base of the peers' walks: both write the mask as bits of 32-bit words, shape (1, words)."""

    _bits: Any

    def allows(self, token: int) -> bool:
        return bool((int(self._bits[0, token >> 5]) & 0xFFFFFFFF) >> (token & 31) & 1)


class _XgrammarMatcher(_PeerMatcher):
    def __init__(self, module: Any, compiled: Any, vocab_size: int) -> None:
        self._matcher = module.GrammarMatcher(compiled)
        self._bits = module.allocate_token_bitmask(1, vocab_size)

    def mask(self) -> object:
        self._matcher.fill_next_token_bitmask(self._bits)
        return self._bits

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())


class Xgrammar:
    """xgrammar, with nothing kept between schemas; strict: objects that do not say otherwise are closed."""

    def __init__(self, file: TokenizerFile, strict: bool = True) -> None:
        import xgrammar

        self.name = "xgrammar" if strict else "xgrammar, as the specification reads"
        self._module = xgrammar
        self._strict = strict
        self._vocab_size = file.vocab_size
        names = [""] * file.vocab_size
        for name, number in file.tokenizer.get_vocab(with_added_tokens=True).items():
            names[number] = name
        decoder = json.dumps(json.loads(file.text).get("decoder"))
        kinds = xgrammar.VocabType
        info = xgrammar.TokenizerInfo(
            names,
            vocab_type=kinds.BYTE_FALLBACK if "ByteFallback" in decoder else kinds.BYTE_LEVEL,
            vocab_size=file.vocab_size,
            stop_token_ids=[file.end_token_id],
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: str) -> Callable[[], Matcher]:
        """Compile a schema; see `Engine`."""
        try:
            compiled = self._compiler.compile_json_schema(schema, strict_mode=self._strict)
        except Exception as error:  # it raises whatever its C++ throws
            raise RefusedError(f"{type(error).__name__}: {str(error)[:200]}") from error
        return lambda: _XgrammarMatcher(self._module, compiled, self._vocab_size)


class _LlguidanceMatcher(_PeerMatcher):
    def __init__(self, module: Any, made: Any, vocab_size: int) -> None:
        self._module = module
        self._matcher = made.deep_copy()
        self._bits = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)

    def mask(self) -> object:
        self._module.numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        return self._bits

    def advance(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def is_complete(self) -> bool:
        return bool(self._matcher.is_accepting())


class Llguidance:
    """llguidance, bounded or without the limits that make it refuse large sets."""

    name = "llguidance"

    def __init__(self, file: TokenizerFile, is_bounded: bool = True) -> None:
        import llguidance
        import llguidance.numpy

        self._module = llguidance
        self._vocab_size = file.vocab_size
        self._tokenizer = llguidance.LLTokenizer(file.text, eos_token=file.end_token_id)
        limits = dict.fromkeys(_LIMITS, 1 << 62)
        self._options = {} if is_bounded else {"limits": llguidance.LLParserLimits(**limits)}

    def compile(self, schema: str) -> Callable[[], Matcher]:
        """Compile a schema; see `Engine`."""
        matcher_class = self._module.LLMatcher
        try:
            grammar = matcher_class.grammar_from_json_schema(schema)
            made = matcher_class(self._tokenizer, grammar, log_level=0, **self._options)
        except Exception as error:  # it raises whatever its Rust panics with
            raise RefusedError(f"{type(error).__name__}: {str(error)[:200]}") from error
        if made.is_error():
            raise RefusedError(str(made.get_error())[:200])
        return lambda: _LlguidanceMatcher(self._module, made, self._vocab_size)


def admits(matcher: Matcher, tokens: Sequence[int], masks_us: list[float], advances_us: list[float]) -> bool:
    """Take tokens as long as the masks allow them; return whether they are a whole document.

    Times of masks and advances, in microseconds, are added to the two lists.
    """
    for token in tokens:
        begun = time.perf_counter_ns()
        matcher.mask()
        masks_us.append((time.perf_counter_ns() - begun) / 1e3)
        if not matcher.allows(token):
            return False
        begun = time.perf_counter_ns()
        advanced = matcher.advance(token)
        advances_us.append((time.perf_counter_ns() - begun) / 1e3)
        if not advanced:
            return False
    return matcher.is_complete()
