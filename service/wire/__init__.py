"""Converts between protobuf messages and the library's values; with `pb` the only place that knows fields.

It must not know where messages come from, nor what is done with values.
"""
