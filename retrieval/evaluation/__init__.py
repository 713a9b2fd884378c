"""Evaluation: answers labelled sets with several methods, and reports metrics with intervals.

`datasets` reads, `methods` answer, `metrics` and `intervals` judge, `reporting` writes. It must not know
gRPC or corpora; sets, metrics and intervals must not know models or methods.
"""
