"""Reads catalogues: CSV, TSV, JSON Lines, Parquet and lines, plain or compressed, one or several files.

The index builder and training read catalogues with this package, so they agree on what a record is. It must
not know tokens, nor how an index is written.
"""
