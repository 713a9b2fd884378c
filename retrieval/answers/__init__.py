"""JSON answers: texts written under a compiled schema, validated, and the entities behind their titles.

It must not know gRPC, HTTP or the command line.
"""
