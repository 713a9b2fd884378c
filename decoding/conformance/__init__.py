"""Examines whether the token tree is exact for a model: random trees against plain passes over every path.

Shared by the check at loading (`self_check`) and the full examination of a checkpoint (`examination`). Knows
models and sessions. It must not know constraints, titles or the command line.
"""

from __future__ import annotations
