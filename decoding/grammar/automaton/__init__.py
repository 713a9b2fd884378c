"""The pushdown automaton over shapes: its parse stacks, their token masks, and how tokens advance them.

Knows shapes, leaves and the trie of a vocabulary. It must not know schemas, nor models.
"""
