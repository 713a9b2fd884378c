"""Corpora: documents in files, cut into shards that can be read again and always give the same documents.

It must not know the index, models, or rows of the output.
"""
