"""Answers requests by `beam`, `disc`, `shortlist` and `auto`: from prompts to ranked entities.

Knows an open index, a model behind its protocol, filters and evidence. It must not know files, schemas, gRPC
or HTTP.
"""

from __future__ import annotations
