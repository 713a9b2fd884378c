"""JSON answers: texts written under a compiled schema, validated, and the entities behind their titles.

Knows schemas by name, grammars, indexes and their filters. It must not know gRPC, HTTP or the command line.
"""
