"""What all connections of a worker together may hold, and which of them is closed when the worker is full.

What one connection holds is a constant in each of its states. Only what may be larger needs a place, and the number of
places is fixed. So the memory of a worker is a product, and nothing counts buffered bytes:

    worker_connections * CONNECTION_BYTES + PLACES * (the largest body, or the response to it)

The sockets' buffers, which the kernel holds, and the store come on top. See tests/audits/hostile.py for measurements.
"""

from socket import AF_INET6, inet_pton
from typing import Any, Final

# A body or the rest of a response that is larger than this needs a place.
SMALL_BODY_BYTES: Final = 16_384
SMALL_RESPONSE_BYTES: Final = 65_536
PLACES: Final = 64
# A head and its environ (64 KiB), a small body (16), and received bytes that are not parsed yet (32); or the unread
# part of a small response (64) and such received bytes. With TLS, OpenSSL's buffers come on top.
CONNECTION_BYTES: Final = 131_072
TLS_CONNECTION_BYTES: Final = CONNECTION_BYTES + 81_920


class Places:
    """The places for large bodies and large responses; a connection has at most one, for both."""

    def __init__(self, count: int) -> None:
        self.refused: int = 0
        self._count = count
        self._holders: set[Any] = set()

    def take(self, connection: Any) -> bool:
        """Return whether the connection has a place now; if it has none and none is free, count it as refused."""
        if connection not in self._holders:
            if len(self._holders) >= self._count:
                self.refused += 1
                return False
            self._holders.add(connection)
        return True

    def release(self, connection: Any) -> None:
        """Let go of the connection's place, if it has one."""
        self._holders.discard(connection)

    def in_use(self) -> int:
        """Return the number of connections that have a place."""
        return len(self._holders)


class Group:
    """The connections from one address; ``waiting`` has those that wait for their client, longest inactive first."""

    def __init__(self, address: Any) -> None:
        self.address = address
        self.size: int = 0
        self.waiting: dict[Any, None] = {}


class Strangers:
    """The connections without a checked token, by the addresses of their clients."""

    def __init__(self) -> None:
        self.groups: dict[Any, Group] = {}

    def join(self, address: Any) -> Group:
        """Add a connection to the group of its address, and return the group."""
        group = self.groups.get(address)
        if group is None:
            group = self.groups[address] = Group(address)
        group.size += 1
        return group

    def leave(self, group: Group, connection: Any) -> None:
        """Remove a connection from its group, and the group if it is empty then."""
        group.waiting.pop(connection, None)
        group.size -= 1
        if not group.size:
            del self.groups[group.address]

    def to_evict(self, address: Any) -> Any:
        """Return the connection that makes room for a new one from ``address``, or None if there is no such connection.

        It is the longest inactive one of the address that has most of them; in a tie, that of the new client. A
        connection with a checked token never makes room for one without.
        """
        own = self.groups.get(address)
        largest = own.waiting if own else {}
        for group in self.groups.values():
            if len(group.waiting) > len(largest):
                largest = group.waiting
        return next(iter(largest), None)


def network_of(host: str) -> Any:
    """Return what counts as one client: an IPv4 address, the first half of an IPv6 address, or "" for a Unix socket."""
    is_ipv4 = ":" not in host or host.startswith("::ffff:")  # The latter is at a listener for both versions.
    return host if is_ipv4 else inet_pton(AF_INET6, host.partition("%")[0])[:8]
