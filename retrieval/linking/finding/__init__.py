"""Finds mentions: the names of an index, looked up in running text.

Knows names and how likely they are. It must not know models, nor files of documents.
"""
