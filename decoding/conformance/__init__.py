"""Is the token tree exact for this model? Random trees against plain forward passes over every path alone.

The check that a model goes through when it is loaded (`decoding.self_check`) and the full examination of a
checkpoint (`decoding.conformance.suite`) share what is in this package.
"""
