"""Sources of valid bearer tokens: a collection, or a file, which is read again after a change."""

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

B64TOKEN = r"[A-Za-z0-9\-._~+/]++=*+"  # RFC 6750, section 2.1

_B64TOKEN = re.compile(B64TOKEN)
_SHA256_LINE = re.compile(r"sha256:([0-9a-fA-F]{64})")
_MAX_FILE_BYTES = 1 << 20
CHECK_SECONDS = 1.0  # A token file is examined at most this often.

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

        :raises TypeError: ``tokens`` is a string, whose characters would be the tokens, or an item is not a string.
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
        accepted = False
        for digest in self._digests:  # Compare all, so that the time does not show which one matched.
            accepted |= hmac.compare_digest(presented, digest)
        return accepted


class TokenFile(Tokens):
    """The valid tokens in a regular file, which is read again after a change.

    A line is a token, or ``sha256:`` and the hexadecimal SHA-256 digest of one. Empty lines and lines that start with
    ``#`` are ignored. If the file becomes unusable, the tokens in force stay valid. A new process never inherits
    tokens, which may have been removed since: if it cannot use the file, it accepts no token until it can.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        :raises ValueError: it is too large or no regular file, or it has a bad line or no token; the message shows no
            token.
        :raises OSError: it cannot be read.
        """
        self._path = Path(path).absolute()  # The working directory may change.
        self._version: tuple[int, ...] | None = _version_of(self._path)
        self._digests = _read(self._path)
        self._problem = ""
        self._pid = os.getpid()
        self._next_check = 0.0

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of those in force, after a look at the file once a second."""
        now = time.monotonic()
        if now >= self._next_check or self._pid != os.getpid():
            self._next_check = now + CHECK_SECONDS
            self._check_file()
        return super().accepts(token)

    def _check_file(self) -> None:
        is_new_process = self._pid != os.getpid()
        try:
            # Before the file is read, so that a change during the read is found the next time.
            version = _version_of(self._path)
            if version != self._version or is_new_process:
                digests = _read(self._path)
                if digests != self._digests or self._problem:
                    _log.info("the token file has changed; valid tokens: %d", len(digests))
                self._digests = digests
            self._version, self._problem = version, ""
        except Exception as error:  # Even a MemoryError must not fail the request.
            self._keep_tokens([] if is_new_process else self._digests, str(error) or repr(error))
        self._pid = os.getpid()  # Last, because another thread uses the digests once this is its process.

    def _keep_tokens(self, digests: list[bytes], reason: str) -> None:
        problem = f"{'the old tokens stay valid' if digests else 'no token is valid'}: {reason}"
        if problem != self._problem:
            _log.error("the token file cannot be used, so %s", problem)
        self._digests, self._problem = digests, problem
        self._version = None  # Read the file again at the next check, even if it does not change until then.


def digest_of(token: str) -> bytes:
    """Return the SHA-256 digest of a token.

    :raises TypeError: the token is not a string.
    :raises ValueError: no client could send the token; the message does not show it.
    """
    if not isinstance(token, str):
        raise TypeError(f"a token is a string, not {type(token).__name__}")
    if not _B64TOKEN.fullmatch(token) or token.lower() == "bearer":  # PLANTS_TOKENS="Bearer secret" would be two.
        raise ValueError(
            "a token consists of letters, digits and -._~+/ (with = only at its end), see RFC 6750, and is not Bearer"
        )
    return hashlib.sha256(token.encode()).digest()


def _version_of(path: Path) -> tuple[int, ...]:
    """Return what differs after a change of the file.

    :raises ValueError: it is not a regular file; opening or reading a pipe or a device could block forever.
    :raises OSError: it does not exist, or it cannot be examined.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _read(path: Path) -> list[bytes]:
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
