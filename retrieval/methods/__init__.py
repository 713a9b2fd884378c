"""Answers requests by `beam`, `disc`, `shortlist` and `auto`: from prompts to ranked entities."""

from __future__ import annotations
