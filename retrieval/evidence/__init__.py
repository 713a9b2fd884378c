"""Evidence of an index beside the model: names, texts, past queries, vectors.

Finds candidates for a query and computes their features. It knows neither the model that writes titles nor
the weights of features (`retrieval.ranking`).
"""
