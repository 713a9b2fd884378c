"""Automata over code points: patterns, formats, ranges of numbers, and how texts are spelled in JSON."""
