"""End-to-end linking: the model writes the text again with links in it, and can write nothing else."""
