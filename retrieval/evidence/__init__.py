"""What an index knows of its entities beside the model: names, texts, past queries, vectors."""
