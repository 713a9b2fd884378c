"""Retrieval: texts, indexes, prompts and requests around the engine; `from genret import Retriever` opens it.

Knows what users ask and what they get. It must not know gRPC, protobuf or the service. Importing the package
imports nothing heavy.
"""

if __name__ != "genret.retrieval":
    raise ImportError("this package is genret.retrieval: import it by that name", name=__name__)
