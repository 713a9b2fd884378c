"""A server's life: its engine, a process apart with indexes, devices and queues; start, reload and drain.

Only `models` imports torch, and only `server` knows transport. Queues must not know messages or metrics.
"""
