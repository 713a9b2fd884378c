"""What `vectors.py` is made of: queries, timed shortlists, Flat search beside them, figures."""
