"""Vectors of titles, aliases and other texts: makes them, and finds the entities nearest to a query.

Knows encoders and faiss, which sees vectors and numbers only. It must not know models that write titles,
requests or gRPC.
"""
