"""Completion by looking at every name: slow, and right at sight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from genret.retrieval.evidence.postings import fold, fold_all

FAR = 99


class NamedEntity(NamedTuple):
    """An entity as the oracle knows it, in the order of the entities' numbers."""

    entity_id: str
    forms: tuple[str, ...]
    weight: float


def errors_table(typed: str, word: str) -> list[list[int]]:
    """D[i][j]: errors between i letters typed and j of the word; of two, one must come after the third."""
    forgiven = 0 if len(typed) < 3 else 1 if len(typed) < 8 else 2
    table = [[FAR] * (len(word) + 1) for _ in range(len(typed) + 1)]
    for i in range(len(typed) + 1):
        for j in range(len(word) + 1):
            ways = [0] if i == j == 0 else []
            if i:
                ways.append(table[i - 1][j] + 1)
            if j:
                ways.append(table[i][j - 1] + 1)
            if i and j:
                ways.append(table[i - 1][j - 1] + (typed[i - 1] != word[j - 1]))
            if i > 1 and j > 1 and typed[i - 2 : i] == word[j - 2 : j][::-1]:
                ways.append(table[i - 2][j - 2] + 1)
            least = min(ways)
            table[i][j] = FAR if least > forgiven or (i <= 3 and least > 1) else least
    return table


@cache
def word_errors(typed: str, word: str, is_prefix: bool) -> int:
    """Return the errors of a typed word, or of a typed beginning, in a word; FAR: too many."""
    if len(typed) < 3:
        return 0 if (word.startswith(typed) if is_prefix else word == typed) else FAR
    if len(word) < len(typed) - 2 or (len(word) > len(typed) + 2 and not is_prefix):
        return FAR
    last = errors_table(typed, word[: len(typed) + 2])[-1]
    return min(last) if is_prefix else last[-1]


@cache
def _words(form: str) -> list[str]:
    return fold_all([form])[0].split()


def complete(
    entities: Sequence[NamedEntity], prefix: str, k: int, allowed: Sequence[bool]
) -> list[tuple[str, str, int]]:
    """Return entity id, form and errors of the best k."""
    words = fold_all([prefix])[0].split()
    is_ended = fold(prefix).endswith(" ") and bool(fold(prefix).strip())
    typed = [(word, n == len(words) - 1 and not is_ended) for n, word in enumerate(words)]
    best = {}
    for number, entity in enumerate(entities):
        for place, form in enumerate(entity.forms):
            name = _words(form)
            errors = sum(min(word_errors(*one[:1], word, one[1]) for word in name) for one in typed)
            if not allowed[number] or errors >= FAR:
                continue
            begins = not errors and len(name) >= len(typed)
            begins = begins and all(
                word.startswith(one) if goes_on else word == one
                for (one, goes_on), word in zip(typed, name, strict=False)
            )
            key = (
                errors,
                not begins,
                -entity.weight,
                sum(map(len, name)) + len(name),
                name[:4],
                number,
                place,
            )
            if number not in best or key < best[number][0]:
                best[number] = key, form
    ordered = sorted(best.values())[:k]
    return [(entities[key[-2]].entity_id, form, key[0]) for key, form in ordered]
