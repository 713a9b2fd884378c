"""Constrained decoding: token ids in, token ids out.

This package knows tensors, token ids, constraints and models behind one adapter. It must not know text,
files, titles or RPC.

Symbols used in the shape comments of every module:

    Q   queries in one batch                 V   vocabulary size of the model
    B   branches (beams or draws) per query  E   edges (ragged children) in one answer
    N   trie nodes                           R   rows (distinct token sequences) of a catalogue
    M   candidate tokens per branch          T   prompt length in tokens
    K   draws of DISC                        L   length of a row in tokens, end token included

Importing the package imports nothing heavy; import the modules you need.
"""

if __name__ != "genret.decoding":
    raise ImportError("this package is genret.decoding: import it by that name", name=__name__)
