"""Methods that are compared: the retriever's own, `generate` of transformers, BM25, runs of other systems.

It must not know metrics or reports, nor look at the labels of the queries that it answers.
"""
