"""The ranking of `auto`: a fitted, documented model of which candidate is meant."""
