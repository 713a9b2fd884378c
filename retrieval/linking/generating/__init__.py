"""Mentions that the model itself finds and links, by writing a text again with links in it."""
