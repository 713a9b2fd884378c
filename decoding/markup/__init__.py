"""A text with links in it, as a grammar: `[mention](title)`, where all but the links is the text itself.

Knows bytes, tokens and sorted titles. It must not know models, what titles stand for, or where texts come
from.
"""
