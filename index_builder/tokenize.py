"""Titles to rows, and the rules a row must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from retrieval.rejects import Reason, Rejects
from retrieval.sources import Record
from retrieval.text import Rendering, TextTokenizer

_NAMED = 5  # characters or words named in the detail of a bad row


@dataclass(frozen=True, slots=True)
class OverLong:
    """A title or alias that was refused for its length.

    Attributes:
        tokens: Tokens of its row, end token included.
        text: The title or alias.
        file: Number of the file, from 0.
        line: Line number, from 1.
    """

    tokens: int
    text: str
    file: int
    line: int


class RowEncoder:
    """Tokenises records in batches, on all cores the tokenizer's thread pool has.

    Args:
        tokenizer: The tokenizer.
        rendering: How titles stand after the prompt.
        max_title_tokens: Rows of more tokens, end token included, are refused.

    Attributes:
        end_token_id: Closes every row.
        longest: The longest title or alias refused for its length, if any was.

    Raises:
        InputError: the tokenizer names no end token.
    """

    def __init__(self, tokenizer: TextTokenizer, rendering: Rendering, max_title_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._rendering = rendering
        self._max_title_tokens = max_title_tokens
        self.end_token_id = tokenizer.end_token_id(rendering)
        self._unknown_id = tokenizer.unknown_id
        self._empty_row = tokenizer.encode_titles([""], rendering)[0]
        self.longest: OverLong | None = None

    def encode(
        self, records: Sequence[Record], rejects: Rejects
    ) -> tuple[list[Record], list[list[int]], list[int]]:
        """Tokenise every form of every record; a record with a bad form is refused as a whole.

        Returns:
            records: Those that were kept.
            rows: Rows of their forms: for each record its title, then its aliases.
            forms: Number of forms per kept record.
        """
        texts: list[str] = []
        for record in records:
            texts.append(record.title)
            texts += record.aliases
        encoded = self._tokenizer.encode_titles(texts, self._rendering)
        whole = [row for row in encoded if row is not None]
        if len(whole) == len(texts) and self._are_good(whole):
            return list(records), whole, [1 + len(record.aliases) for record in records]
        return self._sift(records, texts, encoded, rejects)

    def _are_good(self, rows: Sequence[list[int]]) -> bool:
        """Whether no row of a batch breaks a rule: one look at all, since hardly any batch has such a row."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        if not len(rows) or lengths.min() < 2 or lengths.max() > self._max_title_tokens:
            return False
        tokens = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        # Every row closes with the end token, so one for each row is the least.
        if np.count_nonzero(tokens == self.end_token_id) != len(rows):
            return False
        if self._unknown_id is not None and (tokens == self._unknown_id).any():
            return False
        return self._empty_row not in rows

    def _sift(
        self,
        records: Sequence[Record],
        texts: Sequence[str],
        encoded: Sequence[list[int] | None],
        rejects: Rejects,
    ) -> tuple[list[Record], list[list[int]], list[int]]:
        """Tell good records from bad ones, row by row."""
        kept: list[Record] = []
        rows: list[list[int]] = []
        forms: list[int] = []
        begin = 0
        for record in records:
            end = begin + 1 + len(record.aliases)
            good: list[list[int]] = []
            for at in range(begin, end):
                row = encoded[at]
                fault = self._fault(row, texts[at])
                if fault is not None or row is None:
                    reason, detail = fault or (Reason.UNSTABLE_BOUNDARY, "")
                    rejects.add(record.line, reason, texts[at], detail, record.file)
                    if reason is Reason.OVER_LONG and row is not None:
                        self._note_length(record, texts[at], len(row))
                    break
                good.append(row)
            else:
                kept.append(record)
                rows += good
                forms.append(len(good))
            begin = end
        return kept, rows, forms

    def _note_length(self, record: Record, text: str, tokens: int) -> None:
        if self.longest is None or tokens > self.longest.tokens:
            self.longest = OverLong(tokens, text, record.file, record.line)

    def _fault(self, row: list[int] | None, text: str) -> tuple[Reason, str] | None:
        if row is None:
            return Reason.UNSTABLE_BOUNDARY, "its first characters change the tokens before it"
        if row == self._empty_row or len(row) < 2:
            return Reason.NO_TOKENS, ""
        if len(row) > self._max_title_tokens:
            return Reason.OVER_LONG, f"{len(row)} tokens, at most {self._max_title_tokens}"
        if self._unknown_id in row[:-1]:
            # It stands for whatever is not in the vocabulary, so unrelated entities would share the row.
            return Reason.UNKNOWN_TOKEN, self._unspellable(text)
        if row.index(self.end_token_id) != len(row) - 1:
            # Only a row that closes with its one end token can be no prefix of another.
            return Reason.END_TOKEN_INSIDE, f"token {self.end_token_id}"
        return None

    def _unspellable(self, text: str) -> str:
        """Say what of a text the vocabulary lacks: characters, else words, else the rendered whole."""
        for parts in (list(dict.fromkeys(text)), list(dict.fromkeys(text.split()))):
            rows = self._tokenizer.encode_texts(parts)
            lacking = [part for part, ids in zip(parts, rows, strict=True) if self._unknown_id in ids]
            if lacking:
                more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
                return f"cannot spell {', '.join(map(repr, lacking[:_NAMED]))}{more}"
        rendering = self._rendering
        return f"cannot spell {rendering.prefix + text + rendering.suffix!r}"
