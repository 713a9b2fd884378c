"""Keeps a server reachable whoever connects: limits on connections, and file descriptors in reserve.

gRPC's core accepts, reads and closes connections in its own threads, and limits their number and their age.
It knows no limit per address and does not close a connection that only pings. `ConnectionGuard` does both
from outside: it looks at the process's own sockets, and ends a connection by shutdown(2).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from genret.service.configuration.server_config import ConnectionLimits

_LOG = logging.getLogger(__name__)

# Errors of a call that found no free file descriptor.
EXHAUSTED = (errno.EMFILE, errno.ENFILE)
# Descriptors for everything but connections: files of indexes, listeners, polling, logs.
_OTHERS = 256
# Ports that share the rest: gRPC's (twice, for connections that the guard has yet to end), HTTP, monitoring.
_PORT_SHARES = 4
# gRPC's core may hold so many times the connections of a port, if open files suffice.
_OVERFLOW = 4
_FEWEST = 16
# More are of no use; a process that may open any number gets as many.
_MOST_DESCRIPTORS = 2**20


def raise_descriptor_limit() -> None:
    """Raise the limit on open files to the most that the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Systems that report no limit refuse to set none; all take the number of POSIX's largest tables.
    most = 10_240 if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def descriptor_limit() -> int:
    """Return how many files this process may have open at once."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def port_limit(limits: ConnectionLimits) -> int:
    """Return the most connections of one port: those of the settings, fewer if open files do not suffice."""
    return max(_FEWEST, min(limits.max, (descriptor_limit() - _OTHERS) // _PORT_SHARES))


def core_limit(limits: ConnectionLimits) -> int:
    """Return the most connections that gRPC's core may hold until `ConnectionGuard` has ended those too many.

    The core refuses the newest one, a probe as well as another.
    """
    most = port_limit(limits)
    return max(most, min(_OVERFLOW * most, descriptor_limit() - _OTHERS - 2 * most))


@lru_cache(4096)
def origin_of(address: str) -> str:
    """Return the origin for which an address counts: itself, and for IPv6 its network of 64 bits."""
    found = ip_address(address.partition("%")[0])
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped else found.exploded[: len("0000:" * 4) - 1]


class Reserve:
    """File descriptors that are held open, to be freed when no others are left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []
        self.fill()

    def fill(self) -> None:
        """Hold as many again as there should be, or as can be opened."""
        while len(self._held) < self._size:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                return

    def free(self) -> bool:
        """Close one; return whether there was any."""
        if self._held:
            os.close(self._held.pop())
            return True
        return False

    def renew(self) -> int:
        """Close all and open them again; return the lowest descriptor that was free, -1 if none was."""
        self.close()
        self.fill()
        return min(self._held, default=-1)

    def close(self) -> None:
        """Close all."""
        while self.free():
            pass


class RareWarning:
    """Logs a warning at most once a minute, with the number of those left out since."""

    _EVERY_S = 60.0

    def __init__(self) -> None:
        self._next = -self._EVERY_S
        self._left_out = 0

    def log(self, text: str) -> None:
        """Log a text, or count it."""
        if time.monotonic() < self._next:
            self._left_out += 1
            return
        again = f" ({self._left_out:,} more times since the last line)" if self._left_out else ""
        self._next, self._left_out = time.monotonic() + self._EVERY_S, 0
        _LOG.warning("%s%s", text, again)


class OpenCalls:
    """Counts the running calls of each gRPC connection, by the peer as gRPC writes it."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._ended: set[str] = set()

    @contextmanager
    def running(self, peer: str) -> Iterator[None]:
        """Count a call of this peer until the block ends."""
        self._running[peer] += 1
        try:
            yield
        finally:
            self._running[peer] -= 1
            if not self._running[peer]:
                del self._running[peer]
                self._ended.add(peer)

    def are_running(self) -> bool:
        """Whether any call runs."""
        return bool(self._running)

    def take_busy(self) -> set[str]:
        """Return the peers that have a call, or had one since this was asked last."""
        busy, self._ended = self._ended | self._running.keys(), set()
        return busy


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection as the kernel describes it; `silent_ms` is the time since its peer sent something."""

    descriptor: int
    peer: str
    origin: str
    silent_ms: int
    sent: int
    received: int


_LOOK_EVERY_S = 0.25
# A look at few connections takes a millisecond; many are looked at less often, for 5 % of the time at most,
# unless, at a tick, so many file descriptors more are in use.
_PAUSE_PER_LOOK = 20
_TICK_S = 0.05
_GROWN = 128
_LOOKED_AT_ONCE = 32
# gRPC's threads work for each connection that ends; they get the time between so many, seconds.
_BETWEEN_ENDS_S = 0.002
# A connection without a call that gets and sends so much between two looks floods the server with frames that
# must be answered. Requests on their way are answered with far less.
_FLOOD_BYTES = 128 * 1024
_FLOOD_ANSWERED = 0.25


class ConnectionGuard:
    """Ends gRPC connections that are too many of one origin, too many in all, or do nothing but ping.

    Of too many, those end first whose peer has been silent for longest; those with a call are kept. Needs
    Linux; elsewhere the limits of gRPC's core alone hold.
    """

    def __init__(self, limits: ConnectionLimits, calls: OpenCalls) -> None:
        self._limits = limits
        self._calls = calls
        self._reserve = Reserve(2)  # for the list of descriptors, and the one that is looked at
        self._before: dict[str, _Connection] = {}
        self._lowest = 0
        self._pause_until = 0.0
        self._warning = RareWarning()

    async def run(self, port: int) -> None:
        """Guard the connections of a listening port until cancelled."""
        try:
            while sys.platform == "linux":
                await self._tick(port)
                await asyncio.sleep(_TICK_S)
        except Exception:
            _LOG.exception("a bug: gRPC connections are no longer limited by address, nor for pinging")

    async def _tick(self, port: int) -> None:
        # The lowest free descriptor: its number grows with the connections, and costs nothing to know.
        lowest = self._reserve.renew()
        if time.monotonic() < self._pause_until and lowest < self._lowest + _GROWN:
            return
        worked = time.thread_time()
        await self._try_to_look(port)
        pause = max(_LOOK_EVERY_S, _PAUSE_PER_LOOK * (time.thread_time() - worked))
        self._pause_until = time.monotonic() + pause
        self._lowest = min(lowest, self._reserve.renew())  # connections made meanwhile have grown it

    async def _try_to_look(self, port: int) -> None:
        self._reserve.close()
        try:
            await self._look(port)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._warning.log("no file descriptor is left to look at gRPC's connections")
        finally:
            self._reserve.fill()

    async def _look(self, port: int) -> None:
        """End the connections that have to."""
        descriptors = os.listdir("/proc/self/fd")
        found: list[_Connection] = []
        for start in range(0, len(descriptors), _LOOKED_AT_ONCE):
            some = (_look_at(int(name), port) for name in descriptors[start : start + _LOOKED_AT_ONCE])
            found += (connection for connection in some if connection is not None)
            await asyncio.sleep(0)
        busy = self._calls.take_busy()
        idle = [connection for connection in found if connection.peer not in busy]
        others = len(descriptors) - len(found)
        most = max(_FEWEST, min(port_limit(self._limits), descriptor_limit() - _OTHERS - others))
        floods = [connection for connection in idle if self._floods(connection)]
        excess = self._excess(found, idle, most)
        self._before = {connection.peer: connection for connection in found}
        if floods:
            self._warning.log(f"{floods[0].peer}: closed a connection that sent many frames and no call")
        elif excess:
            self._warning.log(
                f"{excess[0].peer}: closed {len(excess)} idle gRPC connections; at most "
                f"{self._limits.max_per_address} of an address and {most} in all are held "
                "(connections.max_per_address, connections.max)"
            )
        for number, connection in enumerate((*floods, *excess)):
            _look_at(connection.descriptor, port, end=connection.peer)
            if number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(_BETWEEN_ENDS_S)

    def _floods(self, connection: _Connection) -> bool:
        before = self._before.get(connection.peer)
        received = connection.received - (before.received if before else 0)
        sent = connection.sent - (before.sent if before else 0)
        return received > _FLOOD_BYTES and sent > _FLOOD_ANSWERED * received

    def _excess(
        self, found: Sequence[_Connection], idle: Sequence[_Connection], most: int
    ) -> list[_Connection]:
        """Return the idle connections to end, so that no origin has too many and all together have `most`."""
        held = Counter(connection.origin for connection in found)
        kept: list[_Connection] = []
        ended: list[_Connection] = []
        for connection in sorted(idle, key=lambda one: -one.silent_ms):
            too_many = held[connection.origin] > self._limits.max_per_address
            held[connection.origin] -= too_many
            (ended if too_many else kept).append(connection)
        over = max(0, len(found) - len(ended) - most)
        # The origins with the most connections give theirs up first.
        kept.sort(key=lambda one: (-held[one.origin], -one.silent_ms))
        return ended + kept[:over]


_INTERNET = (socket.AF_INET, socket.AF_INET6)
# Closed since it was listed; no socket; one that listens, or whose peer has just gone.
_NO_CONNECTION = (errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN, errno.EINVAL)
# In the kernel's `struct tcp_info`: the time since the last data, and the bytes acknowledged and received.
_SILENCE = struct.Struct("=52xI")
_TRAFFIC = struct.Struct("=120xQQ")


def _look_at(descriptor: int, port: int, *, end: str = "") -> _Connection | None:
    """Return the connection of a descriptor, None if it is no connection of this port; end that of a peer.

    A duplicate is looked at: gRPC may close the descriptor meanwhile, and open it for something else.
    """
    try:
        duplicate = os.dup(descriptor)
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            raise
        with connection:
            if connection.family not in _INTERNET or connection.getsockname()[1] != port:
                return None
            host, remote = connection.getpeername()[:2]
            mapped = host.removeprefix("::ffff:")
            peer = f"ipv6:%5B{host}%5D:{remote}" if ":" in mapped else f"ipv4:{mapped}:{remote}"
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TRAFFIC.size)
            if peer == end:
                connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno not in _NO_CONNECTION:
            raise
        return None
    (silent_ms,) = _SILENCE.unpack_from(info)
    return _Connection(descriptor, peer, origin_of(host), silent_ms, *_TRAFFIC.unpack(info))
