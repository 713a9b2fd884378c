"""Interceptors of the server: what holds for every method of every service."""
