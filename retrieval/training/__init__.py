"""Training: fine-tune a checkpoint, or teach a small model from scratch, to write catalogue titles.

Needs the extra `train`. Knows catalogues, prompts and torch. It must not know serving, nor any index on disk
but for what it measures. Importing this package imports nothing heavy.
"""
