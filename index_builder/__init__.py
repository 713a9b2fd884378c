"""Builds index directories: from catalogue files to a published version, and updates and rollbacks of it.

Knows the index format (`retrieval.index`), sources, text, evidence, and the derivation of the trie
(`decoding.trie.trie_arrays`). It must not know RPC. It starts no torch but for an encoder or a model that it
is told to run.
"""

if __name__ != "genret.index_builder":
    raise ImportError("this package is genret.index_builder: import it by that name", name=__name__)
