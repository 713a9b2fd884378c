"""Examines whether the token tree is exact for a model: random trees against plain passes over every path.

The check that a model goes through when it is loaded (`self_check`) and the full examination of a checkpoint
(`examination`) share what is in this package. Knows models and sessions. It must not know constraints, titles
or the command line.
"""

from __future__ import annotations
