"""The on-disk index: format version 6, its reader and its verifier.

The format is described in docs/index-format.md. Knows files, digests and Arrow. It must not know who builds
an index (`index_builder`), nor models that answer from it. Importing the package imports nothing heavy;
import `retrieval.index.reader.Index` to open an index.
"""
