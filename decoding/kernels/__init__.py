"""The hot loops of the title trie, once per backend behind one contract (`contract.TrieKernels`).

`torch_kernels` runs on any device, with static shapes where a CUDA graph or `torch.compile` needs them;
`numba_kernels` are loops for the CPU, where the cost of calling a dozen tensor operations is most of a small
step. `choice.choose_kernels` picks one. All of them are held to the same brute force.
"""
