"""Leaves: regular languages of bytes that a scalar value or a key may be, quotes included.

Knows automata and the trie of a vocabulary. It must not know schemas, nor what surrounds a scalar.
"""
