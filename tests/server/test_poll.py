"""The loop's methods of ``epoll`` where the system has none."""

import socket

from plants.server.poll import READABLE, WRITABLE, Poll


def test_a_descriptor_is_ready_for_the_events_that_are_watched() -> None:
    poll = Poll()
    near, far = socket.socketpair()
    with near, far:
        poll.register(near.fileno(), READABLE)
        assert poll.poll(0.01, 100) == []
        far.send(b"x")
        assert poll.poll(60.0, 100) == [(near.fileno(), READABLE)]
        poll.modify(near.fileno(), WRITABLE)
        assert poll.poll(60.0, 100) == [(near.fileno(), WRITABLE)]
        poll.unregister(near.fileno())
        assert poll.poll(0.0, 100) == []
