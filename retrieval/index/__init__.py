"""The on-disk index: format version 5, its reader and its verifier.

The format is described in docs/index-format.md. Importing the package imports nothing heavy; import
`retrieval.index.reader.Index` to open an index.
"""
