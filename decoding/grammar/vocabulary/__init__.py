"""Which bytes every token of a tokenizer writes, as a trie to walk."""
