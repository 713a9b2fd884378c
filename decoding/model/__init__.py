"""Runs stock transformers models behind `decoding.language_model`, all branches of a batch as one token tree.

hf_model          the adapter: `HFLanguageModel`          model_loading, architectures, checkpoint_files
hf_session        one batch of prompts and its branches   chains: one branch per query, taken back at will
token_tree        who sees whom: slots, paths, windows    whole_trees: many depths in one pass
tree_cache        keys and values                         prefill: the pass over prompts, shared prefixes
tree_attention    what the model calls as its attention   segment_attention: the softmax behind it

The only room that knows transformers' models. It must not know constraints, titles or requests.
"""

from __future__ import annotations
