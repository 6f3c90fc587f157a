"""Sources of valid bearer tokens: a collection, or a file that is read again after a change."""

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock, Thread
from typing import Protocol, runtime_checkable

B64TOKEN = r"[A-Za-z0-9\-._~+/]+=*"  # RFC 6750, section 2.1

_B64TOKEN = re.compile(B64TOKEN)
_SHA256_LINE = re.compile(r"sha256:([0-9a-fA-F]{64})")
_MAX_FILE_BYTES = 1 << 20
_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


@runtime_checkable
class TokenCheck(Protocol):
    """An object that decides whether a token is valid."""

    def accepts(self, token: str) -> bool:
        """Return whether the token, a ``b64token``, is valid.

        Several threads may call this at the same time. In a hosted service the event loop calls it, so it must not
        block.
        """


class Tokens:
    """Valid tokens, stored as SHA-256 digests."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Store the digests of the valid tokens.

        :raises TypeError: ``tokens`` is a string, whose characters would be the tokens, or has an item that is none.
        :raises ValueError: there is no token, or at least one is not a ``b64token``; the message does not show it.
        """
        if isinstance(tokens, str):
            raise TypeError("tokens is a string; pass a list of strings")
        self._digests = [digest_of(token) for token in tokens]
        if not self._digests:
            raise ValueError("tokens has no token, so every request would be rejected")

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of these."""
        presented = hashlib.sha256(token.encode()).digest()
        # Compare all, so that the time does not show which one matched.
        return True in [hmac.compare_digest(presented, digest) for digest in self._digests]


class TokenFile(Tokens):
    """The valid tokens in a regular file. Each process that checks tokens reads the file again after a change.

    A line is a token, or ``sha256:`` and the hexadecimal SHA-256 digest of one. Empty lines and lines that start with
    ``#`` are ignored. A change takes effect once two reads in a row, a second apart, found it, because another process
    may still be writing. If the file becomes unusable, the tokens in force stay valid. A new process never inherits
    tokens, which may have been removed since: if it cannot use the file, it accepts no token until it can.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        :raises ValueError: it is too large or no regular file, or it has a bad line or no token; the message shows no
            token.
        :raises OSError: it cannot be read.
        """
        self._path = Path(path).absolute()  # The working directory may change.
        self._digests = _read(self._path)
        # What the latest read found, and what was applied last: the digests, or why the file cannot be used.
        self._latest: list[bytes] | str = self._digests
        self._applied: list[bytes] | str = self._digests
        self._polling_pid = 0
        self._lock = Lock()

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of those in force."""
        with self._lock:
            if self._polling_pid != os.getpid():  # Neither threads nor tokens survive a fork.
                self._polling_pid = os.getpid()
                self._digests = []
                self._latest = self._find()
                self._apply(self._latest)
                Thread(target=self._keep_polling, name=__name__, daemon=True).start()
        return super().accepts(token)

    def _keep_polling(self) -> None:
        while True:
            self.poll()
            time.sleep(_POLL_SECONDS)

    def poll(self) -> None:
        """Read the file once, and apply a change that the previous call has already found."""
        found = self._find()
        if found == self._latest and found != self._applied:
            self._apply(found)
        self._latest = found

    def _find(self) -> list[bytes] | str:
        try:
            return _read(self._path)
        except Exception as error:  # Even a MemoryError must not end the thread.
            return str(error) or repr(error)

    def _apply(self, found: list[bytes] | str) -> None:
        if isinstance(found, str):
            kept = "the old tokens stay valid" if self._digests else "no token is valid"
            _log.error("the token file cannot be used, so %s: %s", kept, found)
        else:
            self._digests = found
            if found != self._applied:
                _log.info("the token file has changed; valid tokens: %d", len(found))
        self._applied = found


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


def _read(path: Path) -> list[bytes]:
    if not stat.S_ISREG(path.stat().st_mode):  # Opening or reading a pipe or a device could block forever.
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError("it is larger than 1 MiB")
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
