"""The on-disk index (docs/index-format.md): its reader and its verifier. Importing it is cheap.

It must not know who builds an index (`index_builder`), nor models that answer from it.
"""
