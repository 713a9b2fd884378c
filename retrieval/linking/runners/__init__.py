"""Runners hand shards to workers: in this process, in several of this machine, or on a Ray cluster.

Knows processes and Ray. It must not know how a document is linked.
"""
