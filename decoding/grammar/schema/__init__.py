"""Reads a JSON Schema and turns it into shapes: documents, references, dialects, and the algebra of values.

Knows JSON Schema, and which sets of texts and numbers it describes. It must not know tokens, masks or models.
"""
