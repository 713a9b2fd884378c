"""The output folder of a run: part files, records of finished shards, locks, the one file in the end.

It must not know models, documents, or how rows come about.
"""
