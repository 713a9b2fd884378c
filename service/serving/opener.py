"""What the server and its reloads need of whoever opens indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from service.configuration.config import IndexSpec
from service.serving.served import ServedIndex


class Opener(Protocol):
    """Opens versions of indexes. What blocks is called on a thread of its own, one call at a time."""

    def live_version(self, spec: IndexSpec) -> str:
        """Return the version that an index directory holds now. Blocks for a look at a small file.

        Raises:
            GenretError: there is no index.
        """

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open the live version of an index and check that it can be served. Blocks for as long as it takes.

        What is served already is not touched: requests find the new version when it was published.

        Raises:
            GenretError: it cannot be served.
        """

    def publish(self, opened: ServedIndex) -> Sequence[ServedIndex]:
        """Let requests that come from now on use an index; quick, and called on the event loop.

        Returns:
            What the table is to hold: the index, and others that are to name it in their schemas.
        """

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up what nobody uses any more; quick, and called on the event loop.

        Returns:
            What releases the files and the memory that nobody else holds, to be called where no request of
            it can be running; None where somebody still uses them.
        """

    def finish(self) -> None:
        """Do what is left when every index is open and published. Blocks.

        Raises:
            GenretError: a part of the configuration cannot be used with these indexes.
        """
