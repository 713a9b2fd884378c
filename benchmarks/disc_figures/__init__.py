"""The sections of `benchmarks/disc.py`, one per file."""
