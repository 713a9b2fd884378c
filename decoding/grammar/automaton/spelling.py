"""How few tokens can write a text."""

from __future__ import annotations

from decoding.grammar.errors import VocabularyError
from decoding.grammar.vocabulary.token_node import TokenNode


def fewest_tokens(text: bytes, root: TokenNode) -> int:
    """Count the tokens of the shortest way to write a text.

    Args:
        text: To be written exactly.
        root: Of the vocabulary's trie.

    Raises:
        VocabularyError: no tokens write it.
    """
    impossible = len(text) + 1
    fewest = [impossible] * len(text) + [0]  # for the text from each place on
    for begin in range(len(text) - 1, -1, -1):
        node, best = root, impossible
        for place in range(begin, len(text)):
            child = node.children.get(text[place])
            if child is None:
                break
            node = child
            if node.tokens and fewest[place + 1] < best:
                best = fewest[place + 1]
        fewest[begin] = min(best + 1, impossible)
    if fewest[0] >= impossible:
        raise VocabularyError(f"no tokens write {text[:80]!r}, which every answer under the schema needs")
    return fewest[0]
