"""How tests write JSON: with one spelling per text, as grammars do."""

from __future__ import annotations

import json


def spelled(value: object) -> bytes:
    """Its JSON, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
