"""A server's life: indexes and models, devices with their queues, admission, reloads, start and drain.

Only `models` imports torch, and only `server` knows transport. Queues must not know messages or metrics.
"""
