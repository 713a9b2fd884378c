"""The JSON over HTTP face, and the page to explore with."""
