"""Regular sets of texts and numbers as automata: patterns, formats, ranges, the spelling of texts in JSON.

Knows code points, bytes and exact decimals. It must not know schemas, tokens or vocabularies.
"""
