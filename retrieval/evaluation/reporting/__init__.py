"""Writes the report of an evaluation: figures, words and drawings, as Markdown, HTML and JSON.

Knows metrics and their intervals. It must not know how answers came about.
"""
