"""Finding mentions: the names of an index, looked up in running text."""
