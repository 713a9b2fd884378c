"""Training: fine-tune a checkpoint, or teach a small model from scratch, to write catalogue titles.

Needs the extra `train`. Importing this package imports nothing heavy.
"""
