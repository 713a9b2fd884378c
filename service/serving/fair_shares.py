"""Shares a device's time between clients, and a client's between its calls.

Weighted fair queueing, by the time that requests really take: whoever has had least is next. A client is its
token, or without tokens its address; a call is one single query, one batch, one text to link, or one stream.
So a client's part does not grow with the number of its connections or calls, nor does a single query wait for
all that the client's own streams have sent before it.

Who was idle or is new has saved up nothing: it begins where one who had its fair part all the time would be
(the virtual time of weighted fair queueing), at least where the least of those who are busy stand. Were it
the least alone, endless short calls, each as new as the last, would keep long ones from their second forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

J = TypeVar("J")

# Calls of priority `bulk` are a client of their own, with a small part: they give way, and do not starve.
BULK_WEIGHT = 1 / 8
# Clients or calls that are kept as idle, for what they have had: the oldest are forgotten.
_MOST_IDLE = 10_000


class Caller(NamedTuple):
    """Who asks: the client, and its call, which may ask several questions.

    A client of twice the weight has twice the time.
    """

    client: str = ""
    call: str = ""
    weight: float = 1.0


@dataclass(slots=True, eq=False)
class TimeShare:
    """Time that one client, or one call, has had of the device, seconds divided by its weight."""

    weight: float = 1.0
    had: float = 0.0
    claimed: float = 0.0  # What its running requests are expected to take still

    @property
    def turn(self) -> tuple[float]:
        """Its place in the order (a `side_by_side.Share`)."""
        return (self.had,)

    @property
    def reach(self) -> float:
        """Time it will have had when what runs has ended."""
        return self.had + self.claimed

    def claim(self, seconds: float) -> None:
        """Count expected time."""
        self.claimed += seconds / self.weight

    def charge(self, seconds: float) -> None:
        """Count time that was taken."""
        self.had += seconds / self.weight
        self.claimed = max(0.0, self.claimed - seconds / self.weight)

    def reason_to_stop(self) -> None:
        """Return None: somebody waits."""

    def settle(self, seconds: float) -> None:
        """Take back what is left of a claim of `seconds`."""
        self.claimed = max(0.0, self.claimed - seconds / self.weight)


@dataclass(slots=True, eq=False)
class CallShare(TimeShare, Generic[J]):
    """One call's share, and its requests that wait, in their order."""

    waiting: deque[J] = field(default_factory=deque)
    num_running: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self.waiting and not self.num_running


@dataclass(slots=True, eq=False)
class ClientShare(TimeShare, Generic[J]):
    """One client's share, and its calls that have something to do.

    Its `virtual_s`, and that of all clients together, is the time that each of those that are busy would have
    had, were time divided without end.
    """

    everybody: FairShares[J] | None = None
    virtual_s: float = 0.0  # of its calls
    calls: dict[str, CallShare[J]] = field(default_factory=dict)
    num_waiting: int = 0
    num_running: int = 0
    num_groups: int = 0  # of requests that run together

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self.num_waiting and not self.num_running

    def call(self, name: str) -> CallShare[J]:
        """Return a call's share, a new one if it has nothing to do yet."""
        found = self.calls.get(name)
        if found is None:
            had = max(_least(self.calls.values()), self.virtual_s)
            found = self.calls[name] = CallShare(had=had)
        return found

    def charge(self, seconds: float) -> None:
        """Count time that one of its calls has taken."""
        TimeShare.charge(self, seconds)
        self.virtual_s += seconds / max(1, len(self.calls))
        if self.everybody is not None:
            self.everybody.advance(seconds)


class FairShares(Generic[J]):
    """The clients of one device. Its caller sees to it that one thread uses it at a time."""

    def __init__(self) -> None:
        self._busy: dict[str, ClientShare[J]] = {}
        self._idle: dict[str, ClientShare[J]] = {}
        self._weights = 0.0  # of the busy ones, for every forward is charged
        self._virtual_s = 0.0

    def advance(self, seconds: float) -> None:
        """Count time that some client has taken."""
        self._virtual_s += seconds / (self._weights or 1.0)

    def client(self, name: str, weight: float = 1.0) -> ClientShare[J]:
        """Return a client's share; one that was idle begins at the virtual time."""
        found = self._busy.get(name)
        if found is None:
            found = self._idle.pop(name, None) or ClientShare(weight, everybody=self)
            found.had = max(found.had, self.least_had, self._virtual_s)
            found.claimed = 0.0
            self._busy[name] = found
            self._weigh()
        return found

    @property
    def least_had(self) -> float:
        """Time that the busy client with the least has had."""
        return _least(self._busy.values())

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return sum(client.num_waiting for client in self._busy.values())

    def waiting(self) -> list[J]:
        """Return the requests that wait."""
        calls = (call for client in self._busy.values() for call in client.calls.values())
        return [job for call in calls for job in call.waiting]

    def add(self, client: ClientShare[J], call: CallShare[J], job: J) -> None:
        """Let a request wait."""
        call.waiting.append(job)
        client.num_waiting += 1

    def remove(self, client: ClientShare[J], call: CallShare[J], job: J) -> None:
        """Take a request away that waits."""
        call.waiting.remove(job)
        client.num_waiting -= 1

    def turns(self) -> Iterator[tuple[ClientShare[J], CallShare[J]]]:
        """Yield the call whose first request is next, and its client; again, while requests of it are taken.

        A call of which nothing was taken is passed over. Shares may be claimed and charged meanwhile.
        """
        calls = [
            (client, call)
            for client in self._busy.values()
            if client.num_waiting
            for call in client.calls.values()
            if call.waiting
        ]
        order = [(client.reach, call.reach, number) for number, (client, call) in enumerate(calls)]
        heapify(order)
        while order:
            *reach, number = heappop(order)
            client, call = calls[number]
            now = client.reach, call.reach
            if now == tuple(reach):
                num_waiting = len(call.waiting)
                yield client, call
                if not 0 < len(call.waiting) < num_waiting:
                    continue
                now = client.reach, call.reach
            heappush(order, (*now, number))

    def _weigh(self) -> None:
        self._weights = sum(client.weight for client in self._busy.values())

    def tidy(self) -> None:
        """Forget calls that are over, and set clients without work aside."""
        for name, client in list(self._busy.items()):
            client.calls = {key: call for key, call in client.calls.items() if not call.is_idle}
            if client.is_idle:
                self._idle[name] = self._busy.pop(name)
                self._weigh()
        while len(self._idle) > _MOST_IDLE:
            self._idle.pop(next(iter(self._idle)))


def _least(shares: Iterable[TimeShare]) -> float:
    return min((share.had for share in shares), default=0.0)
