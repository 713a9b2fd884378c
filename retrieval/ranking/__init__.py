"""The ranking of `auto`: fitted weights of features that tell which candidate is meant.

Knows features, their weights and how these are fitted. It must not know tries, how rows are decoded, or the
wire.
"""
