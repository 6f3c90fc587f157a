"""TLS for one connection: ciphertext in, plaintext out. It owns no socket.

``SSLSocket.recv`` does not return while records without application data arrive faster than OpenSSL processes them, so
one client could hold the event loop. Here OpenSSL sees only the bytes that one step has received.
"""

import contextlib
from ssl import OP_NO_RENEGOTIATION, MemoryBIO, SSLContext, SSLError, SSLObject, SSLWantReadError, TLSVersion
from typing import Any, Final

# The most ciphertext per ``receive``. Almost any record fits, and even many small ones are decrypted in milliseconds.
READ_BYTES: Final = 16384
_MAX_RECORD_BYTES = 16384  # of plaintext (RFC 8446, section 5.1)
# The most that a client may send besides application data. OpenSSL accepts chains of certificates of up to 100 KiB.
MAX_OVERHEAD_BYTES: Final = 131072
# Each record with application data reduces the client's overhead by this much, but not below 0. This allows for padding
# (RFC 8446, section 5.4) and an occasional KeyUpdate.
OVERHEAD_BYTES_PER_RECORD: Final = 4096


def restricted(context: Any) -> SSLContext:
    """Require TLS 1.2 or later, negotiate HTTP/1.1 only, and disable renegotiation, which OpenSSL 1.1.1 allows.

    :raises TypeError: ``context`` is not an SSLContext, for example because a hook has no ``return``.
    """
    if not isinstance(context, SSLContext):
        raise TypeError(f"the hook ssl_context returned {context!r}")
    context.minimum_version = max(context.minimum_version, TLSVersion.TLSv1_2)
    context.options |= OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


class TLS:
    """The server's end of one TLS connection.

    After each call of a method, even one that raises, send the client what ``data_to_send`` returns.
    """

    def __init__(self, context: SSLContext) -> None:
        self.established: bool = False  # The handshake is complete.
        self.closed: bool = False  # The client has sent close_notify: no more data will follow.
        self._incoming = MemoryBIO()
        self._outgoing = MemoryBIO()
        self._ssl: SSLObject = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._overhead = 0

    def receive(self, ciphertext: bytes) -> bytes:
        """Decrypt at most ``READ_BYTES`` of ciphertext, and return the plaintext of the records that are now complete.

        :raises SSLError: the handshake failed, a record is invalid, or too much came without application data.
        """
        records: list[bytes] = []
        self._incoming.write(ciphertext)
        with contextlib.suppress(SSLWantReadError):
            if not self.established:
                self._ssl.do_handshake()
                self.established = True
            while self._incoming.pending and not self.closed:
                if data := self._ssl.read(_MAX_RECORD_BYTES):
                    records.append(data)
                else:
                    self.closed = True
        plaintext = records[0] if len(records) == 1 else b"".join(records)
        overhead = self._overhead + len(ciphertext) - len(plaintext) - len(records) * OVERHEAD_BYTES_PER_RECORD
        if overhead > MAX_OVERHEAD_BYTES:
            raise SSLError("too many bytes without application data")
        self._overhead = max(0, overhead)
        return plaintext

    def send(self, plaintext: bytes | memoryview) -> None:
        """Encrypt data for the client."""
        self._ssl.write(plaintext)

    def close(self) -> None:
        """If the handshake is complete, send close_notify, and do not wait for the client's."""
        # ``unwrap`` also reads, but not for long, because ``receive`` has left at most one incomplete record.
        with contextlib.suppress(SSLError):
            self._ssl.unwrap()

    def data_to_send(self) -> bytes:
        """Return the ciphertext to send to the client, and remove it from the buffer."""
        return self._outgoing.read()
