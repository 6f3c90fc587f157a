"""What the loop waits with where the system has no ``epoll`` (macOS, the BSDs), and the numbers of both."""

import select
from typing import Any, Final

# Both have these numbers on Linux. The classes of the module selectors would run Python code for each event.
READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT


class Poll:
    """``select.poll`` with the methods of ``select.epoll`` that the loop uses."""

    def __init__(self) -> None:
        poll: Any = select.poll()
        self.register = poll.register
        self.modify = poll.modify
        self.unregister = poll.unregister
        self._poll = poll.poll

    def poll(self, timeout: float, _maximum: int) -> list[tuple[int, int]]:
        """Wait for at most this many seconds; return all descriptors that are ready, and their events."""
        events: list[tuple[int, int]] = self._poll(timeout * 1000)
        return events
