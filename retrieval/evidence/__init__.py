"""What an index knows of its entities beside the model: names, texts, past queries, vectors.

Finds candidates for a query and gives features of each. It must not know the model that writes titles, nor
what a feature is worth (`retrieval.ranking`).
"""
