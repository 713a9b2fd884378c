"""Filters: the entities of an index that a request may be answered with.

    text ── parser ──> Predicate ── check ──> fits the index ── evaluate ──> entity mask ──> EntityFilter

A filter is a mask over the entities and prefix counts over the rows, which narrow the title trie during
decoding. The grammar is described in docs/filters.md. Knows columns, ids and rows. It must not know models,
methods or the wire.
"""
