"""Offline linking: a file of mentions in, a file of linked mentions out."""
