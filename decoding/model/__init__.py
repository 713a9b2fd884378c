"""Runs stock transformers models behind `decoding.language_model`, all branches of a batch as one token tree.

hf_model          the adapter: `HFLanguageModel`          model_loading, architectures, checkpoint_files
hf_session        one batch of prompts and its branches   chains: one branch per query, with rewinding
token_tree        slots, paths, windows, visibility       whole_trees: many depths in one pass
tree_cache        keys and values                         shared_passes: several sessions in one forward
tree_attention    the attention function models call      segment_attention: the softmax behind it
self_check        an unknown architecture, examined

The only package that knows transformers' models. It must not know constraints, titles or requests.
"""

from __future__ import annotations
