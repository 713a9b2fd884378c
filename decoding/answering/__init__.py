"""Writes one text per query under a grammar: greedy or sampled, with forced spans and drafted tokens.

Knows sessions of models, grammars over token ids and the bytes of a tokenizer. It must not know schemas,
titles or transformers.
"""

from genret.decoding.answering.answer import AnswerCounts, AnswerText
from genret.decoding.answering.speller import Speller
from genret.decoding.answering.writer import write_answers
from genret.decoding.params import AnswerParams

__all__ = ["AnswerCounts", "AnswerParams", "AnswerText", "Speller", "write_answers"]
