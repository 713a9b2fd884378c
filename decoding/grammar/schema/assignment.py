"""Different values for several places at the least total cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def cheapest_assignment(choices: Sequence[Mapping[int, int]]) -> int | None:
    """Give every place a value of its own, as cheaply as possible.

    Places are added one by one; each may push others on to other values along the cheapest path.

    Args:
        choices: For every place its values with their costs.

    Returns:
        The total cost; None if there are not enough values.
    """
    owner: dict[int, int] = {}
    for place in range(len(choices)):
        if not _add(choices, owner, place):
            return None
    return sum(choices[place][value] for value, place in owner.items())


def _add(choices: Sequence[Mapping[int, int]], owner: dict[int, int], place: int) -> bool:
    """Give one more place a value."""
    cost: dict[int, int] = {}
    source: dict[int, int] = {}
    queue = [(place, 0)]
    for taker, spent in queue:  # grows while it is read: costs only fall
        for value, price in choices[taker].items():
            total = spent + price
            if owner.get(value) != taker and total < cost.get(value, total + 1):
                cost[value] = total
                source[value] = taker
                if value in owner:
                    loser = owner[value]
                    queue.append((loser, total - choices[loser][value]))
    free = [value for value in cost if value not in owner]
    if not free:
        return False
    value = min(free, key=lambda candidate: cost[candidate])
    held = {taken: of for of, taken in owner.items()}
    while True:
        taker = source[value]
        owner[value] = taker
        if taker == place:
            return True
        value = held[taker]
