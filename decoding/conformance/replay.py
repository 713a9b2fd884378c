"""One tree, written in one way, compared with the plain answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from decoding.conformance.difference import Difference
from decoding.conformance.layer_readings import LayerReader
from decoding.conformance.plain_passes import PlainAnswers
from decoding.conformance.random_trees import RandomTree
from decoding.conformance.scenarios import Driver, Frontier, Scenario


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison found.

    Attributes:
        logits: Difference of the model's answers.
        layers: Difference of every decoder layer's output, read through the head; empty when not read.
    """

    logits: Difference
    layers: tuple[Difference, ...]

    def __add__(self, other: Outcome) -> Outcome:
        """Both taken together."""
        if not self.layers or not other.layers:
            return Outcome(self.logits + other.logits, self.layers or other.layers)
        layers = tuple(a + b for a, b in zip(self.layers, other.layers, strict=True))
        return Outcome(self.logits + other.logits, layers)


def replay(driver: Driver, scenario: Scenario, answers: PlainAnswers) -> Outcome:
    """Write a tree in one way and compare every branch that is no padding.

    Returns:
        The differences; of no branches where the model cannot do the scenario.
    """
    reader = driver.reader
    outcome = Outcome(Difference(), ())
    if reader is None:
        for frontier in scenario.drive(driver):
            outcome = outcome + _compare(frontier, driver.tree, answers, None)
        return outcome
    with reader.watching():
        for frontier in scenario.drive(driver):
            outcome = outcome + _compare(frontier, driver.tree, answers, reader)
    return outcome


def _compare(
    frontier: Frontier, tree: RandomTree, answers: PlainAnswers, reader: LayerReader | None
) -> Outcome:
    """Compare one frontier."""
    queries, columns = list(frontier.queries), list(frontier.columns)
    real = tree.columns(frontier.depth)[queries][:, columns]

    def expected(level: Tensor) -> Tensor:
        """The frontier's real branches out of the plain answers of its level. (Q, B, n) to (rows, n)."""
        return level[queries][:, columns][real].to(frontier.logits.device)

    device_real = real.to(frontier.logits.device)
    logits = Difference.between(frontier.logits[device_real], expected(answers.logits[frontier.depth]))
    if reader is None or frontier.hidden is None or answers.hidden is None:
        return Outcome(logits, ())
    layers = [
        Difference.between(reader.read(mine[device_real]), reader.read(expected(plain)))
        for mine, plain in zip(frontier.hidden, answers.hidden[frontier.depth], strict=True)
    ]
    return Outcome(logits, tuple(layers))
