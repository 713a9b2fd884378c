"""From a titles file to an index directory.

Knows the index format (`retrieval.index`), text (`retrieval.text`) and the derivation of the trie
(`decoding.trie.trie_arrays`); it knows no model, no torch and no RPC.
"""
