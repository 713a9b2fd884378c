"""The settings of a server: one table of them, read from flags, the environment and a file, and checked.

It must not know what it configures: no serving, no transport, no models.
"""
