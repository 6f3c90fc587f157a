"""Sources of valid bearer tokens: a collection, or a file that is read again after a change."""

import hashlib
import hmac
import logging
import mmap
import os
import re
import stat
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Thread
from typing import Protocol, runtime_checkable

B64TOKEN = r"[A-Za-z0-9\-._~+/]+=*"  # RFC 6750, section 2.1

_B64TOKEN = re.compile(B64TOKEN)
_SHA256_LINE = re.compile(r"sha256:([0-9a-fA-F]{64})")
_MAX_FILE_BYTES = 1 << 20
_SHORTEST_LINE_BYTES = 2
_DIGEST_BYTES = 32
# Layout of the shared memory: the size of the digests, their checksum, the digests.
_SIZE_BYTES = 4
_DIGESTS_AT = _SIZE_BYTES + _DIGEST_BYTES
_MAX_ADOPT_ATTEMPTS = 100

_log = logging.getLogger(__name__)


@runtime_checkable
class TokenCheck(Protocol):
    """An object that decides whether a token is valid."""

    def accepts(self, token: str) -> bool:
        """Return whether the token, a ``b64token``, is valid. Several threads may call this at the same time."""


class Tokens:
    """Valid tokens, stored as SHA-256 digests."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Store the digests of the valid tokens.

        :raises TypeError: ``tokens`` is not an iterable of strings, or is itself a string or a mapping.
        :raises ValueError: there is no token, or at least one is not a ``b64token``; the message does not show it.
        """
        if isinstance(tokens, str | bytes | bytearray | Mapping) or not isinstance(tokens, Iterable):
            raise TypeError("tokens is neither a list of strings nor an object with accepts(token)")
        self._digests = [digest_of(token) for token in tokens]
        if not self._digests:
            raise ValueError("there is no token, so every request would be rejected")

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of these."""
        presented = hashlib.sha256(token.encode()).digest()
        found = False
        for digest in self._digests:  # Compare all, so that the time does not show which one matched.
            found |= hmac.compare_digest(presented, digest)
        return found


class TokenFile(Tokens):
    """The valid tokens in a file. Each process that checks tokens reads the file again after a change.

    A line is a token, or ``sha256:`` and the hexadecimal SHA-256 digest of one. Empty lines and lines that start with
    ``#`` are ignored. A change takes effect after the file has stayed the same for a second, because another process
    may still be writing. If the file cannot be read, has a bad line, or has no token, the earlier tokens stay valid and
    an error is logged. A pipe is read once, at the start.
    """

    _POLL_SECONDS = 1.0

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        :raises ValueError: it is too large or neither a regular file nor a pipe, or it has a bad line or no token; the
            message shows no token.
        :raises OSError: it cannot be read.
        """
        self._path = Path(path).absolute()  # The working directory may change.
        self._is_pipe = self._path.is_fifo()
        self._digests = _digests_in(_read(self._path) if self._is_pipe else _read_regular(self._path))
        # The master does not poll the file, so a new worker may inherit old digests. The worker then adopts the digests
        # that an earlier worker published here. So a removed token stays invalid, even if the file is unusable.
        self._published = mmap.mmap(-1, _DIGESTS_AT + _DIGEST_BYTES * (_MAX_FILE_BYTES // _SHORTEST_LINE_BYTES + 1))
        self._publish()
        # The latest result (digests, or the text of an error), and when it was first seen.
        self._candidate: tuple[list[bytes] | str, float] = ("", 0.0)
        self._applied_stat: tuple[int, ...] | None = None  # of the file whose tokens are in force
        self._problem = ""
        self._watching_pid = 0

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of those in force."""
        if self._watching_pid != os.getpid():  # Threads do not survive a fork.
            self._watching_pid = os.getpid()
            self._adopt()
            if not self._is_pipe:
                Thread(target=_watch, args=[weakref.ref(self)], name=__name__, daemon=True).start()
        return super().accepts(token)

    def poll(self) -> None:
        """Poll the file once; a thread calls this every second."""
        now = time.monotonic()
        state = None
        found: list[bytes] | str
        try:
            status = self._path.stat()
            state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if state == self._applied_stat:
                return
            found = _digests_in(_read_regular(self._path))
        except Exception as error:  # Even a MemoryError must not end the thread.
            found = str(error) or repr(error)
        candidate, since = self._candidate
        if found != candidate:
            self._candidate = found, now
        elif now - since >= self._POLL_SECONDS:
            self._apply(found, state)

    def _apply(self, found: list[bytes] | str, state: tuple[int, ...] | None) -> None:
        if isinstance(found, str):
            if found != self._problem:
                _log.error("the token file cannot be used, so the old tokens stay valid: %s", found)
            self._problem = found
            return
        self._problem = ""
        self._applied_stat = state
        if found != self._digests:
            self._digests = found
            self._publish()
            _log.info("the token file has changed; valid tokens: %d", len(found))

    def _publish(self) -> None:
        digests = b"".join(self._digests)
        header = len(digests).to_bytes(_SIZE_BYTES, "big") + hashlib.sha256(digests).digest()
        self._published[: _DIGESTS_AT + len(digests)] = header + digests

    def _adopt(self) -> None:
        for _ in range(_MAX_ADOPT_ATTEMPTS):
            size = int.from_bytes(self._published[:_SIZE_BYTES], "big")
            digests = self._published[_DIGESTS_AT : _DIGESTS_AT + size]
            if hashlib.sha256(digests).digest() == self._published[_SIZE_BYTES:_DIGESTS_AT]:
                self._digests = [digests[at : at + _DIGEST_BYTES] for at in range(0, size, _DIGEST_BYTES)]
                break
            time.sleep(0.001)  # Another worker is publishing at this moment, or was killed while publishing.


def _watch(reference: "weakref.ref[TokenFile]") -> None:
    while token_file := reference():
        token_file.poll()
        del token_file
        time.sleep(TokenFile._POLL_SECONDS)


def digest_of(token: str) -> bytes:
    """Return the SHA-256 digest of a token.

    :raises TypeError: the token is not a string.
    :raises ValueError: no client could send the token; the message does not show it.
    """
    if not isinstance(token, str):
        raise TypeError(f"a token is a string, not {type(token).__name__}")
    if not _B64TOKEN.fullmatch(token):
        raise ValueError("a token consists of letters, digits and -._~+/ (with = only at its end), see RFC 6750")
    return hashlib.sha256(token.encode()).digest()


def _read_regular(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # Opening or reading a pipe or a device could block forever.
        raise ValueError("it is not a regular file")
    return _read(path)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError("it is larger than 1 MiB")
    return content


def _digests_in(content: bytes) -> list[bytes]:
    digests = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        try:
            digest = _SHA256_LINE.fullmatch(entry)
            digests.append(bytes.fromhex(digest[1]) if digest else digest_of(entry))
        except ValueError:
            raise ValueError(f"line {number} is neither a token (RFC 6750) nor sha256: and 64 hex digits") from None
    if not digests:
        raise ValueError("the file has no token")
    return digests
