"""What the benchmark scripts share: titles to work on, processes to measure, figures to report.

The scripts are run by path (`python benchmarks/index_build.py`), which puts benchmarks/ on the import path.
"""
