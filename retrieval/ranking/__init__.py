"""The ranking of `auto`: fitted weights of features that tell which candidate is meant.

Knows features, their weights and how these are fitted. It knows no tries, no decoding of rows and no wire
formats.
"""
