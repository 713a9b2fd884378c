"""Reading labelled sets: BEIR, KILT, TREC, mentions in context, queries with their answers."""
