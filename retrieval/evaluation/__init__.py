"""Evaluation: answers labelled sets with several methods, and reports metrics with intervals.

`datasets` reads, `methods` answer, `metrics` and `intervals` judge, `reporting` writes. It must not know
gRPC, nor how decoding works; sets, metrics and intervals must not know models or methods.
"""
