"""Where valid tokens come from."""

import hashlib
import hmac
import logging
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

B64TOKEN = r"[A-Za-z0-9\-._~+/]+=*"  # RFC 6750, section 2.1

_B64TOKEN = re.compile(B64TOKEN)
_SHA256_LINE = re.compile(r"sha256:([0-9a-fA-F]{64})")

_log = logging.getLogger(__name__)


@runtime_checkable
class TokenCheck(Protocol):
    """An object that says whether a token is valid."""

    def accepts(self, token: str) -> bool:
        """Say whether the token, a ``b64token``, is valid. Several threads may call this at the same time."""


class Tokens:
    """Valid tokens, of which only the SHA-256 digests are kept."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Take the valid tokens.

        :raises TypeError: this is one string, not several, or one of them is no string.
        :raises ValueError: there is none, or one that no client could send; the message does not show it.
        """
        if isinstance(tokens, str | bytes):
            raise TypeError("tokens is an iterable of strings, not one string")
        self._digests = [digest_of(token) for token in tokens]
        if not self._digests:
            raise ValueError("there is no token, so every request would be refused")

    def accepts(self, token: str) -> bool:
        """Say whether the token is one of these."""
        presented = hashlib.sha256(token.encode()).digest()
        found = False
        for digest in self._digests:  # All are compared, so the time does not show which one it was.
            found |= hmac.compare_digest(presented, digest)
        return found


class TokenFile(Tokens):
    """The valid tokens in a file, which is read again when it has changed.

    One token a line, or ``sha256:`` and the hexadecimal SHA-256 digest of one; an empty line, or one that starts with
    ``#``, is ignored. If the file cannot be read, has a line of another form, or has no token, the tokens that it had
    before stay valid, and the log says so.
    """

    _SECONDS_BETWEEN_READS = 1.0

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        :raises ValueError: a line has another form, or there is no token; the message shows no token.
        :raises OSError: the file cannot be read.
        """
        self._path = Path(path)
        self._content = self._path.read_bytes()
        self._digests = _digests_in(self._content)
        self._problem = ""
        self._read_at = time.monotonic()
        self._lock = threading.Lock()

    def accepts(self, token: str) -> bool:
        """Say whether the token was in the file when it was last read, at most a second ago."""
        if time.monotonic() - self._read_at >= self._SECONDS_BETWEEN_READS and self._lock.acquire(blocking=False):
            try:
                self._read_again()
            finally:
                self._lock.release()
        return super().accepts(token)

    def _read_again(self) -> None:
        self._read_at = time.monotonic()
        problem = ""
        try:
            if self._path.is_fifo():
                raise ValueError("it is a pipe, read once")  # To open it again could take for ever.
            content = self._path.read_bytes()
            if content != self._content:
                self._digests = _digests_in(content)
                self._content = content
                _log.info("the token file has changed; valid tokens: %d", len(self._digests))
        except (OSError, ValueError) as error:
            problem = str(error)
            if problem != self._problem:
                _log.error("the token file cannot be used, the old tokens stay valid: %s", problem)
        self._problem = problem


def digest_of(token: str) -> bytes:
    """Give the SHA-256 digest of a token.

    :raises TypeError: it is no string.
    :raises ValueError: no client could send it; the message does not show it.
    """
    if not isinstance(token, str):
        raise TypeError(f"a token is a string, not {type(token).__name__}")
    if not _B64TOKEN.fullmatch(token):
        raise ValueError("a token consists of letters, digits and -._~+/ (with = only at its end), see RFC 6750")
    return hashlib.sha256(token.encode()).digest()


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
