"""A text with links in it: `[mention](title)`, where all but the links is the text and every title is real.

Bytes and tokens only: what the titles stand for, and where texts come from, is known elsewhere.
"""
