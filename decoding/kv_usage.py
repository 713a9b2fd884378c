"""How much key/value memory a session takes, and what one cache per branch would take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Key/value memory of a session, in bytes of storage.

    Attributes:
        held_bytes: Held now: prompts, branches and reserved room. A prefix shared with other sessions is not
            counted, here and in the next two.
        used_bytes: Of these, behind slots that have been written: prompts with their padding, and branches
            that have not been collected.
        peak_bytes: Most held at any time, the copies included that growing and compacting make.
        per_branch_bytes: Most that one cache per branch would have held, as batched beam search keeps it: in
            its costliest step every branch with its whole prompt, the shared prefix included, and its path.
        shared_bytes: Of the shared prefix, held once for all sessions that use it.
        num_collections: How often dead branches were collected.
    """

    held_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    per_branch_bytes: int = 0
    shared_bytes: int = 0
    num_collections: int = 0
