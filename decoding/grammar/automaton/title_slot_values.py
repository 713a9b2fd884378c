"""Finds the title slots that wrote the strings of a finished text.

A slot wrote a string if the whole text is also allowed where this slot alone may write that string: another
alternative may let the string through as well, and die later.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import reduce

from genret.decoding.grammar.automaton.nodes import ScalarKind
from genret.decoding.grammar.automaton.parse_stacks import ParseStack, ParseStacks
from genret.decoding.grammar.leaves.leaf import TitleSlotLeaf, TitleSlotName
from genret.decoding.grammar.schema.schema_document import escaped_step

_STRING_OR_MARK = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{},]')


@dataclass(frozen=True, slots=True)
class TitleSlotValue:
    """A string of an answer that came out of a hole."""

    pointer: str  # JSON pointer of the string in the answer: "/people/0/name"
    name: TitleSlotName  # The set it comes from
    members: tuple[int, ...]  # Numbers of the members it stands for, ascending; several share a text
    first_byte: int  # Begin of the value in the answer's bytes, its opening quote
    last_byte: int  # End of the value, behind its closing quote


def title_slot_values(stacks: ParseStacks, text: bytes) -> list[TitleSlotValue] | None:
    """The strings that title slots wrote, in order, of equal ones by name; None if the text is not whole."""
    if not _is_whole(stacks.after(stacks.start, text)):
        return None
    found: list[TitleSlotValue] = []
    stack: ParseStack | None = stacks.start
    read = 0
    for pointer, begin, end in _strings(text):
        assert stack is not None  # the text is allowed
        opened = stacks.after(stack, text[read : begin + 1])
        assert opened is not None
        stack, read = stacks.after(opened, text[begin + 1 : end]), end
        slots = []
        for entry in opened.segment.entries:
            kind = entry[0].kind
            if type(kind) is not ScalarKind or not isinstance(kind.leaf, TitleSlotLeaf):
                continue
            alone = stacks.of(stacks.segments.segment((entry,)), opened.below)
            behind = stacks.after(alone, text[begin + 1 : end])
            if behind is stack or (behind is not None and _is_whole(stacks.after(behind, text[end:]))):
                members = kind.leaf.members(reduce(kind.leaf.step, text[begin:end], 0))
                slots.append(TitleSlotValue(pointer, kind.leaf.name, members, begin, end))
        found += sorted(slots, key=lambda value: repr(value.name))
    return found


def _is_whole(stack: ParseStack | None) -> bool:
    return stack is not None and stack.is_complete


def _strings(text: bytes) -> list[tuple[str, int, int]]:
    """The strings of a JSON text that are no keys: pointers, and where they begin and end.

    A key may come twice where its schema does not name it. Parsers keep the last value, so what is in an
    earlier one is left out.
    """
    found: dict[str, tuple[str, int, int]] = {}
    steps: list[int | str] = []
    keys: list[set[str]] = []
    is_key = False
    for match in _STRING_OR_MARK.finditer(text):
        token = match.group()
        if token in (b"[", b"{"):
            is_key = token == b"{"
            steps.append("" if is_key else 0)
            keys.append(set())
        elif token in (b"]", b"}"):
            steps.pop()
            keys.pop()
        elif token == b",":
            last = steps[-1]
            is_key = isinstance(last, str)
            if isinstance(last, int):
                steps[-1] = last + 1
        elif is_key:
            name = steps[-1] = escaped_step(json.loads(token))
            if name in keys[-1]:
                value = _pointer(steps)
                found = {p: s for p, s in found.items() if p != value and not p.startswith(f"{value}/")}
            keys[-1].add(name)
            is_key = False
        else:
            pointer = _pointer(steps)
            found[pointer] = (pointer, match.start(), match.end())
    return list(found.values())


def _pointer(steps: list[int | str]) -> str:
    return "".join(f"/{step}" for step in steps)
