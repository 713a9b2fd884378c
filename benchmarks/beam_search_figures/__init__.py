"""The sections of `benchmarks/beam_search.py`, one per file."""
