"""Answers requests by `beam`, `disc`, `shortlist` and `auto`: from prompts to ranked entities.

It must not know files, schemas, gRPC or HTTP.
"""
