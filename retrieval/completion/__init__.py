"""Search as you type: entities whose names go on like a prefix, typing errors forgiven.

It must not know models, requests to them, or the wire.
"""
