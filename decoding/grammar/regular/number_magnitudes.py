"""The absolute values of the numbers of one sign, in whole units of the last decimal place that matters."""

from __future__ import annotations

from bisect import bisect_left
from math import gcd, lcm

from decoding.grammar.regular.number_lattice import ALL_NUMBERS, NO_NUMBER, Exact, Lattices


def decimal_places(number: Exact) -> int:
    """Digits behind the point of a decimal number."""
    if isinstance(number, int):
        return 0
    places = 0
    rest = number.denominator
    for prime in (2, 5):
        power = 0
        while not rest % prime:
            rest //= prime
            power += 1
        places = max(places, power)
    return places


class Divisibility:
    """A condition of divisibility, for reading numbers digit by digit.

    Attributes:
        places: Digits behind the point that it looks at; another digit that is not 0 leaves all lattices.
        otherwise: Whether numbers on no lattice meet it.
        moduli: What to keep the number read so far modulo, in units of its last place, by how many digits
            behind the point are read. Shape: (places + 1,).
    """

    __slots__ = ("_modulus", "_steps", "exponents", "moduli", "otherwise", "places", "smallest")

    def __init__(self, lattices: Lattices) -> None:
        steps = [(step, factor) for step, factor in lattices if step]
        self.otherwise = bool(lattices) and not lattices[0][0]
        self.places = max((decimal_places(step) for step, _ in steps), default=0)
        scale = 10**self.places
        self._steps = [(int(step * scale), factor) for step, factor in steps]
        self._modulus = lcm(*(step for step, _ in self._steps))
        self.moduli = [
            self._modulus // gcd(self._modulus, 10 ** (self.places - read)) for read in range(self.places + 1)
        ]
        self.smallest: Exact | None = min((step for step, _ in steps), default=None)
        self.exponents = _deciding_exponent(self._modulus, self.places) if steps else None

    def meets(self, read: int, digits: int) -> bool:
        """Whether a number of `read` digits behind the point, all digits being `digits`, meets the condition.

        Args:
            read: At most `places`.
            digits: May be reduced modulo `moduli[read]`.
        """
        number = digits * 10 ** (self.places - read)
        return self.otherwise + sum(factor for step, factor in self._steps if not number % step) == 1

    def future(self, residue: int) -> tuple[int, ...]:
        """Equal for two residues if the same further digits in front of the point make them meet it.

        Behind k more digits a number is a multiple if they, read as a number, are one of the residue class
        that complements the digits in front of them; while 10^k is less than the step, that is one number
        at most.
        """
        key = []
        for step, _ in self._steps:
            power = 10**self.places
            while power < step:
                missing = -residue * power % step
                key.append(missing if missing < power else -1)
                power *= 10
            key.append(residue % (step // gcd(step, power)))
        return tuple(key)

    @property
    def on_all(self) -> bool:
        """Whether numbers on all lattices meet it."""
        return self.meets(0, 0)


def _deciding_exponent(modulus: int, places: int) -> int | None:
    """The least e such that 10^e is a multiple of modulus / 10^places; None if there is none."""
    rest, powers = modulus, []
    for prime in (2, 5):
        power = 0
        while not rest % prime:
            rest //= prime
            power += 1
        powers.append(power)
    return max(powers) - places if rest == 1 else None


class Magnitudes:
    """A set of numbers from 0 up.

    Attributes:
        places: Digits behind the point in one unit: enough for all cuts and steps.
        cuts: In units, ascending, the first one 0. Shape: (n,).
        points: Whether each cut belongs to the set. Shape: (n,).
        between: Index of the condition above each cut. Shape: (n,).
        conditions: The conditions; the first two are none and all.
    """

    __slots__ = ("between", "conditions", "cuts", "is_everything", "places", "points")

    def __init__(self, cuts: list[Exact], points: list[bool], between: list[Lattices]) -> None:
        kinds = list(dict.fromkeys((NO_NUMBER, ALL_NUMBERS, *between)))
        self.conditions = [Divisibility(kind) for kind in kinds]
        self.places = max(
            max(map(decimal_places, cuts)), max(condition.places for condition in self.conditions)
        )
        scale = 10**self.places
        self.cuts = [int(cut * scale) for cut in cuts]
        self.points = points
        self.between = [kinds.index(kind) for kind in between]
        self.is_everything = points == [True] and self.between == [1]

    def inside(self, low: int, high: int) -> int:
        """The condition that holds for all of low <= x < high, in units; -1 where a cut is there."""
        index = bisect_left(self.cuts, low)
        if index < len(self.cuts) and self.cuts[index] < high:
            return -1
        return self.between[index - 1]

    def above(self, cut: int) -> int:
        """The condition right above a cut."""
        return self.between[bisect_left(self.cuts, cut)]

    def has(self, digits: int, read: int) -> bool:
        """Whether it holds the number with `read` digits behind the point, at most `places`."""
        number = digits * 10 ** (self.places - read)
        index = bisect_left(self.cuts, number)
        if index < len(self.cuts) and self.cuts[index] == number:
            return self.points[index]
        condition = self.conditions[self.between[index - 1]]
        excess = self.places - condition.places
        whole, rest = divmod(number, 10**excess)
        return condition.otherwise if rest else condition.meets(condition.places, whole)


def magnitudes(
    cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...], zero: bool
) -> tuple[Magnitudes, Magnitudes]:
    """The numbers from 0 up, and those from 0 down without their sign; `zero` says if 0 is one."""
    first = bisect_left(cuts, 0)
    above = first + (first < len(cuts) and cuts[first] == 0)
    positive = Magnitudes([0, *cuts[above:]], [zero, *points[above:]], list(between[above:]))
    negative = Magnitudes(
        [0, *(-cut for cut in reversed(cuts[:first]))],
        [zero, *reversed(points[:first])],
        list(reversed(between[: first + 1])),
    )
    return positive, negative
