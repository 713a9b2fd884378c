"""Vectors of titles, aliases and descriptions: what proposes the entities of a shortlist."""
