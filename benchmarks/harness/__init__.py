"""Parts that benchmark scripts share: commands, titles, processes, figures.

The scripts are run by path (`python benchmarks/index_build.py`), which puts benchmarks/ on the import path.
"""
