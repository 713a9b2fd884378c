"""Adapters: a retriever or a server as a part of LangChain, LlamaIndex, Haystack or spaCy.

One module per library, which needs the extra of its name. The package must not know of the server more than
its client, nor of `retrieval` anything but `Retriever` and its values; nothing else imports it.
"""
