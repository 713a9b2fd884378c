"""Checks that the token tree is exact for a model: random trees against plain passes over every path alone.

The check that a model goes through when it is loaded (`self_check`) and the full examination of a checkpoint
(`examination`) share what is in this package.
"""

from __future__ import annotations
