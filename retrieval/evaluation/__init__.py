"""Evaluation: labelled sets, methods side by side, metrics with intervals, one report."""
