"""JSON answers: text written under a compiled schema, checked, and the entities behind its titles."""
