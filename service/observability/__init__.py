"""Metrics, logs and traces of calls and batches, for operators. It must not know messages."""
