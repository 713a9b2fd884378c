"""The chat template of a checkpoint, rendered around a place for the user's text.

It is rendered once, by transformers in its sandbox, with a placeholder for the text. The parts around the
placeholder are markup like any other: the text itself never passes through the template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from genret.retrieval.errors import InputError

_Template = TypeVar("_Template")
_PLACE = "GENRETUSERTEXT"
_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class ChatParts:
    """A conversation around the user's text.

    Attributes:
        before: Markup before the text.
        after: Markup behind it, up to the title.
        end: Text of the token that ends the assistant's turn; None: the turn ends with the text.
    """

    before: str
    after: str
    end: str | None


class ChatTemplate:
    """The chat template of a checkpoint directory. Nothing is loaded before a prompt asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer: Any = None
        self._kept: dict[str, Any] = {}

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate | None:
        """Return the chat template of a directory; None where it has none."""
        return cls(folder) if _has_chat_template(folder) else None

    def kept(self, name: str, make: Callable[[str, ChatTemplate], _Template]) -> _Template:
        """Return the prompt template of a name, made when it is first asked for."""
        if name not in self._kept:
            self._kept[name] = make(name, self)
        template: _Template = self._kept[name]
        return template

    def around_query(self, turns: Sequence[tuple[str, str]], ask: str, start: str) -> ChatParts:
        """Render a conversation whose last user turn ends with the user's text.

        Args:
            turns: Earlier turns, each of the user and of the assistant.
            ask: Words before the text in the last turn of the user.
            start: First words of the assistant's last turn, before the title; may be empty.

        Raises:
            InputError: the template cannot be rendered, or does not show user and assistant as they are.
        """
        said = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in zip(("user", "assistant"), turn, strict=True)
        ]
        asked = [*said, {"role": "user", "content": ask + _PLACE}]
        if start:
            asked.append({"role": "assistant", "content": start})
        before, after = self._parted(
            asked, continue_final_message=bool(start), add_generation_prompt=not start
        )
        if not after.endswith(start):
            raise self._error(f"the assistant's turn must go on behind {start!r}, got {after[-40:]!r}")
        ended = [{"role": "user", "content": ask}, {"role": "assistant", "content": start + _PLACE}]
        _, behind = self._parted(ended)
        return ChatParts(before, after, self._first_token(behind))

    def _parted(self, messages: list[dict[str, str]], **options: bool) -> tuple[str, str]:
        """Render messages, one of which holds the placeholder, and return the parts around it."""
        import jinja2

        try:
            rendered = self._loaded().apply_chat_template(messages, tokenize=False, **options)
        except (jinja2.TemplateError, LookupError, TypeError, ValueError) as error:
            raise self._error(f"cannot be rendered: {error}") from error
        parts = rendered.split(_PLACE)
        if len(parts) != 2:
            raise self._error(f"expected to show the user's text once, got it {len(parts) - 1} times")
        return parts[0], parts[1]

    def _first_token(self, markup: str) -> str | None:
        """Return the first token of markup as the vocabulary has it; None for empty markup."""
        ids = self._loaded().encode(markup, add_special_tokens=False)
        return None if not ids else str(self._loaded().convert_ids_to_tokens(ids[0]))

    def _loaded(self) -> Any:
        if self._tokenizer is None:
            from transformers import PreTrainedTokenizerFast  # transformers takes seconds to import

            try:
                self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
                    str(self._folder), local_files_only=True
                )
            except (OSError, ValueError, TypeError, LookupError) as error:
                raise self._error(f"its tokenizer cannot be loaded: {error}") from error
        return self._tokenizer

    def _error(self, message: str) -> InputError:
        return InputError("prompt", f"the chat template of {self._folder}: {message}")


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    file = folder / _TOKENIZER_CONFIG
    if not file.is_file():
        return False
    try:
        declared = json.loads(file.read_bytes())
    except ValueError:
        return False  # loading the tokenizer gives the better error
    return isinstance(declared, dict) and bool(declared.get("chat_template"))
