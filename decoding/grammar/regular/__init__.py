"""Automata over code points: regular expressions, formats, ranges of numbers, and how a set of texts is spelled in JSON."""
