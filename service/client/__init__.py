"""The client library: what a program needs to ask a server."""
