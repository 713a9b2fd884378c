"""Which tokens can still be afforded: masks under a budget, kept, since every allowed token is looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from weakref import ref

from decoding.answering.choice_points import PackedMask
from decoding.grammar.token_grammar import TokenGrammar

# Of the key, its parts and the array, beside the mask itself.
_ENTRY_BYTES = 400

_Key = tuple[ref[TokenGrammar], int, int]


class AffordableMasks:
    """Masks by grammar, state and tokens left. Safe to use from several threads.

    Budgets run out alike: of every answer that is too long, its text is closed with the fewest tokens that
    close it, and so are all texts behind it. Answers of a batch and of later requests ask for the same masks.

    Args:
        max_bytes: Masks that were not asked for lately are forgotten when all take more. One that takes more
            by itself is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        # A grammar that is gone equals no other; what is kept of it goes as anything does.
        self._kept: OrderedDict[_Key, PackedMask] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        """Memory of all that is kept."""
        return self._num_bytes

    def mask(self, grammar: TokenGrammar, state: int, left: int) -> PackedMask:
        """The allowed tokens behind which fewer than `left` tokens can finish; read-only.

        Args:
            grammar: Says which.
            state: One of its states.
            left: Tokens that may be written from there, the one that is asked for included.
        """
        key = ref(grammar), state, left
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
        made = grammar.vocabulary.packed(grammar.fitting_tokens(state, left))  # looks at every allowed token
        made.flags.writeable = False
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._num_bytes += made.nbytes + _ENTRY_BYTES
            while self._num_bytes > self._max_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._num_bytes -= oldest.nbytes + _ENTRY_BYTES
        return made
