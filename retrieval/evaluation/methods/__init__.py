"""Methods that are compared: ours, free text looked up in the index, HF's own constrained sampling, BM25."""
