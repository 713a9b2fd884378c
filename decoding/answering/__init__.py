"""Writing one text per query under a constraint: greedy or sampled, with forced spans and drafted tokens."""
