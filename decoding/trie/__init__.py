"""Holds the title trie: its arrays, the constraint over them, row filters, and the kernels that walk it.

The hot loops exist once per backend. `trie_kernels.TorchKernels` run on any device, with static shapes for
CUDA graphs and `torch.compile`; `numba_kernels` are loops for the CPU, where calling a dozen tensor
operations takes most of a small step. `title_trie.make_kernels` picks one.

Knows rows of token ids. It must not know models, entities or files. Importing the package imports nothing:
the index builder uses `trie_arrays`, which needs NumPy only.
"""

from __future__ import annotations
