"""TLS for tests: a certificate, and a client that can also send the records that Python's ssl never sends."""

import contextlib
import datetime as dt
import hmac
import re
import ssl
import struct
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.x509.oid import NameOID


def make_certificate(folder: Path) -> Path:
    """Write a self-signed certificate for localhost and its key into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), today - day, today + day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return pem


def trusting(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Make a client's context that accepts every certificate and speaks this version of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = context.minimum_version = version
    return context


class TLSClient:
    """A client's end of a TLS connection, in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing)

    def step(self, received: bytes = b"") -> bytes:
        """Continue the handshake; return what to send to the server."""
        self.incoming.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.ssl.do_handshake()
        return self.outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self.ssl.write(data)
        return self.outgoing.read()

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Return the decrypted data, even if the server has sent close_notify."""
        self.incoming.write(ciphertext)
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self.ssl.read(65536):
                data += piece
        return data


class Records13:
    """The records of a TLS 1.3 client whose handshake is complete and whose own TLS object sends nothing more.

    :param keylog: the ``keylog_filename`` of the client's context, which has had no other connection.
    """

    def __init__(self, client: ssl.SSLObject | ssl.SSLSocket, keylog: Path) -> None:
        assert client.cipher()[0] == "TLS_AES_256_GCM_SHA384"  # type: ignore[index]  # The handshake is complete.
        (secret,) = re.findall(r"^CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)$", keylog.read_text(), re.MULTILINE)
        self._derive_keys(bytes.fromhex(secret))

    def data(self, data: bytes) -> bytes:
        return self._encrypt(data + b"\x17")

    def key_update(self) -> bytes:
        """Change the client's key, and request a change of the server's (RFC 8446, section 4.6.3)."""
        record = self._encrypt(b"\x18\0\0\x01\x01\x16")
        self._derive_keys(self._expand(b"traffic upd", 48))
        return record

    def _derive_keys(self, secret: bytes) -> None:
        self._secret = secret
        self._aead = AESGCM(self._expand(b"key", 32))
        self._iv = int.from_bytes(self._expand(b"iv", 12))
        self._sequence = 0

    def _expand(self, label: bytes, length: int) -> bytes:
        info = struct.pack("!HB", length, len(label) + 6) + b"tls13 " + label + b"\0\x01"
        return hmac.digest(self._secret, info, "sha384")[:length]

    def _encrypt(self, content: bytes) -> bytes:
        header = b"\x17\x03\x03" + struct.pack("!H", len(content) + 16)
        nonce = (self._iv ^ self._sequence).to_bytes(12)
        self._sequence += 1
        return header + self._aead.encrypt(nonce, content, header)
