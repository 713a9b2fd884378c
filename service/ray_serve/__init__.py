"""The service behind Ray Serve's gRPC proxy: the same methods, interceptors and errors, other transport."""
