"""Examines whether the token tree is exact for a model: random trees against plain passes over every path.

Only `genret doctor` uses it; the short check at loading is `decoding.model.self_check`. Knows models and
sessions. It must not know constraints, titles or the command line.
"""

from __future__ import annotations
