"""Mentions that the model itself finds and links, by writing a text again with links in it.

Knows the model through `decoding`, and `decoding.markup`. It must not know files or shards.
"""
