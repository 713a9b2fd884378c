"""The ranking of `auto`: a fitted, documented model of which candidate is meant.

Knows features, their weights and how weights are fitted. It must not know tries, how rows are
decoded, or the wire.
"""
