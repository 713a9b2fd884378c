"""Builds index directories: from catalogue files to a published version, and updates and rollbacks of it.

Knows the index format (`retrieval.index`), sources, text, evidence, and the derivation of the trie
(`decoding.trie.trie_arrays`). It must not know RPC. It starts no torch but for an encoder or a model that it
is told to run.
"""
