"""The HTTP face: JSON for every method of the API, its OpenAPI document, and the explorer page.

It must not know gRPC's servicers, nor how an answer is found.
"""
