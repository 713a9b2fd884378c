"""Evidence of an index beside the model: names, texts, past queries, vectors.

Finds candidates for a query and computes their features. It must not know the model that writes titles, nor
the weights of features (`retrieval.ranking`).
"""
