"""The service behind Ray Serve's gRPC proxy: the same methods, interceptors and errors, other transport.

It must not know anything of its own about queries.
"""
