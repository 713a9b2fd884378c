"""What fits into a model: how long a prompt may be, and how much may follow it."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.language_model import LanguageModel

# A prompt must leave room for the longest title, or for this many tokens when a title is longer still:
# one monstrous title must not make every query "too long".
_MIN_ROOM = 64
# Most queries that decode together where nobody says otherwise.
DEFAULT_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """Positions of a model, None where the architecture sets no bound.

    Attributes:
        positions: Of prompt and title together; of the title alone for encoder-decoders.
        encoder_positions: Of the prompt of an encoder-decoder; not used for decoder-only models.
        is_encoder_decoder: Whether prompts go into an encoder.
    """

    positions: int | None = None
    encoder_positions: int | None = None
    is_encoder_decoder: bool = False

    @classmethod
    def of(cls, model: LanguageModel) -> Limits:
        """Return the limits of a model that is ready for decoding."""
        return cls(model.max_positions, model.max_prompt_tokens, model.is_encoder_decoder)

    def prompt_tokens(self, longest_title: int) -> int | None:
        """Return how long a prompt may be before titles of up to `longest_title` tokens."""
        if self.is_encoder_decoder or self.positions is None:
            return self.encoder_positions
        return self.positions - min(longest_title, _MIN_ROOM, self.positions // 2)

    def room(self, prompt_tokens: int) -> int | None:
        """Return how many tokens may follow a prompt."""
        if self.positions is None:
            return None
        return self.positions - (0 if self.is_encoder_decoder else prompt_tokens)
