"""Automata over code points: patterns, formats, ranges of numbers, and how sets of texts are spelled in JSON."""
