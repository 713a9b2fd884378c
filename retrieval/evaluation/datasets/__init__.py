"""Reads labelled sets (BEIR, KILT, TREC, mentions, queries) and finds their labels' entities in an index.

It must not know models, methods or metrics.
"""
