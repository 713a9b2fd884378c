"""Methods that are compared: the retriever's own, `generate` of transformers, BM25, runs of other systems.

It must not know labels, metrics or reports.
"""
