"""Title slots: strings that must be one of a catalogue's titles, found in sorted texts as they lie.

Knows sorted texts, bytes and the trie of a vocabulary. It must not know indexes, entities or filters.
"""
