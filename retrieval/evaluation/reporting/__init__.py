"""The report of an evaluation: figures, words and drawings, as Markdown, HTML and JSON."""
