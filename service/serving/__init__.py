"""A server's life: indexes and models, devices with their queues, admission, reloads, start and drain.

Only `models` starts torch, and only `server` knows transport. Queues and versions of indexes must not know
messages, metrics or traces.
"""
