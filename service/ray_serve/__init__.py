"""The service behind Ray Serve's gRPC proxy: the same methods, interceptors and errors, other transport.

Only what runs on a cluster imports Ray. It must not know anything of its own about queries.
"""
