"""Converts between protobuf messages and the library's values; with `pb` the only place that knows fields."""
