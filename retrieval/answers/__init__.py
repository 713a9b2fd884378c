"""JSON answers: texts written under a compiled schema, validated, and the entities behind their titles."""
