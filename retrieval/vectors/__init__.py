"""Vectors of titles, aliases and other texts: makes them, and finds the entities nearest to a query.

Knows encoders and faiss, which sees vectors and numbers only. It knows no models that write titles, no
requests and no gRPC.
"""
