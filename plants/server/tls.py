"""TLS for one connection: ciphertext in, plaintext out. It owns no socket.

``SSLSocket.recv`` does not return while records without application data arrive faster than OpenSSL processes them, so
one client could hold the event loop. Here OpenSSL sees only complete records, and few of them in one step. Records
without data extend no deadline, so the request's timeout ends a flood of them.
"""

import contextlib
from ssl import CERT_NONE, OP_NO_RENEGOTIATION, MemoryBIO, SSLContext, SSLError, SSLObject, SSLWantReadError, TLSVersion
from typing import Final

READ_BYTES: Final = 16384  # the most ciphertext per ``receive``
_MAX_RECORDS_PER_STEP: Final = 64
_HEADER_BYTES: Final = 5
_MAX_RECORD_BYTES: Final = 16384  # of plaintext (RFC 8446, section 5.1)
_LARGEST_RECORD_BYTES: Final = _MAX_RECORD_BYTES + 2048  # of ciphertext, without its header (RFC 5246, section 6.2.3)
HANDSHAKE: Final = b"\x16"  # the type of a client's first record
_RECORD_TYPES: Final = b"\x14\x15\x16\x17"
# What a client may send before the handshake is complete. Chains of certificates are larger.
HANDSHAKE_BYTES: Final = 16_384
HANDSHAKE_BYTES_WITH_CERTIFICATE: Final = 49_152


def restricted(context: SSLContext) -> SSLContext:
    """Require TLS 1.2 or later with authenticated encryption (AEAD), negotiate HTTP/1.1 only, and never renegotiate.

    :raises SSLError: the configured ciphers have no AEAD suite of TLS 1.2.
    """
    context.minimum_version = max(context.minimum_version, TLSVersion.TLSv1_2)
    context.options |= OP_NO_RENEGOTIATION  # OpenSSL 1.1.1 allows it by default.
    ciphers = context.get_ciphers()  # This also lists the suites of TLS 1.3, which all have AEAD.
    context.set_ciphers(":".join(each["name"] for each in ciphers if each["aead"] and each["protocol"] == "TLSv1.2"))
    context.set_alpn_protocols(["http/1.1"])
    return context


class TLS:
    """The server's end of one TLS connection.

    After each call of ``receive``, even one that raises, send the client what ``encrypt`` returns.
    """

    def __init__(self, context: SSLContext) -> None:
        self.begun: bool = False  # The client has sent something.
        self.established: bool = False  # The handshake is complete.
        self.closed: bool = False  # The client has sent close_notify: no more data will follow.
        self.has_more: bool = False  # Complete records are left for the next step.
        self._incoming = MemoryBIO()
        self._outgoing = MemoryBIO()
        self._ssl: SSLObject = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes_left: int = (
            HANDSHAKE_BYTES if context.verify_mode == CERT_NONE else HANDSHAKE_BYTES_WITH_CERTIFICATE
        )
        self._ciphertext: bytes = b""  # not passed to OpenSSL yet: an incomplete record, or what follows a full step

    def receive(self, ciphertext: bytes) -> bytes:
        """Decrypt a limited number of records, and return the plaintext of those that are complete now.

        If ``has_more`` is set then, call this again, without new ciphertext.

        :raises SSLError: the handshake failed or is too large, or a record is invalid.
        """
        self.begun = True
        self._pass_records(self._ciphertext + ciphertext if self._ciphertext else ciphertext)
        records: list[bytes] = []
        with contextlib.suppress(SSLWantReadError):
            if not self.established:
                self._handshake_bytes_left -= len(ciphertext)
                self._ssl.do_handshake()
                self.established = True
            while self._incoming.pending and not self.closed:
                if data := self._ssl.read(_MAX_RECORD_BYTES):
                    records.append(data)
                else:
                    self.closed = True
        if not self.established and self._handshake_bytes_left < 0:
            raise SSLError("the handshake is too large")
        return b"".join(records)

    def _pass_records(self, data: bytes) -> None:
        """Pass the first complete records to OpenSSL, and keep the rest of the data."""
        count = end = 0
        while count < _MAX_RECORDS_PER_STEP and end + _HEADER_BYTES <= len(data):
            size = data[end + 3] << 8 | data[end + 4]
            if data[end] in _RECORD_TYPES and size <= _LARGEST_RECORD_BYTES:
                record_end = end + _HEADER_BYTES + size
            else:
                record_end = len(data)  # This is not TLS. OpenSSL rejects it, with the right alert.
            if record_end > len(data):
                break
            end = record_end
            count += 1
        self._incoming.write(data[:end])
        self._ciphertext = data[end:]
        self.has_more = count == _MAX_RECORDS_PER_STEP and end < len(data)

    def encrypt(self, plaintext: bytes) -> bytes:
        """Return the ciphertext of the data, after all that is pending: of the handshake, for example."""
        pieces = [self._outgoing.read()]
        # Encrypt it record by record, because OpenSSL's buffer would stay as large as it once was.
        for start in range(0, len(plaintext), _MAX_RECORD_BYTES):
            self._ssl.write(plaintext[start : start + _MAX_RECORD_BYTES])
            pieces.append(self._outgoing.read())
        return b"".join(pieces)

    def close(self) -> bytes:
        """If the handshake is complete, return close_notify; do not wait for the client to send it."""
        # ``unwrap`` also reads, but not for long, because ``receive`` passes few records on, and each of them whole.
        with contextlib.suppress(SSLError):
            self._ssl.unwrap()
        return self._outgoing.read()
