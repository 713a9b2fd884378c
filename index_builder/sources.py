"""Reading a titles file: `retrieval.sources`, which training reads catalogues with too."""

from retrieval.sources import ALIAS_SEPARATOR, STDIN, Columns, Record, TitleSource

__all__ = ["ALIAS_SEPARATOR", "STDIN", "Columns", "Record", "TitleSource"]
