"""Sources of valid bearer tokens: a collection, or a file, which is read again after a change."""

import hashlib
import logging
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

B64TOKEN = r"[A-Za-z0-9\-._~+/]++=*+"  # RFC 6750, section 2.1

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
        self._digests = frozenset(digest_of(token) for token in tokens)
        if not self._digests:
            raise ValueError("tokens has no token, so every request would be rejected")

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of these."""
        # The time of a lookup reveals nothing about a token, because similar tokens do not have similar digests.
        return hashlib.sha256(token.encode()).digest() in self._digests


class TokenFile(Tokens):
    """The valid tokens in a regular file, which is read again once a second.

    A line is a token, or ``sha256:`` and the hexadecimal SHA-256 digest of one. Empty lines and lines that start with
    ``#`` are ignored. If the file becomes unusable, the tokens in force stay valid.
    """

    def __init__(self, path: str | Path) -> None:
        """Check the file.

        :raises ValueError: it is too large or no regular file, or it has a bad line or no token; the message shows no
            token.
        :raises OSError: it cannot be read.
        """
        self._path = Path(path).absolute()  # The working directory may change.
        self._found: frozenset[bytes] | str = _read(self._path)  # the digests, or why the file cannot be used
        # Each process reads the file itself at its first use, because a token may be removed before a fork.
        self._digests = frozenset()
        self._next_check = 0.0

    def accepts(self, token: str) -> bool:
        """Return whether the token is one of those in force, after a look at the file once a second."""
        now = time.monotonic()
        if now >= self._next_check:
            self._check_file()
            self._next_check = now + CHECK_SECONDS  # Set it last: a second thread must not skip the first check.
        return super().accepts(token)

    def _check_file(self) -> None:
        try:
            self._digests = _read(self._path)
            found: frozenset[bytes] | str = self._digests
        except Exception as error:  # Even a MemoryError must not fail the request.
            found = str(error) or repr(error)
        if found == self._found:
            return
        self._found = found
        if isinstance(found, str):
            in_force = "the old tokens stay valid" if self._digests else "no token is valid"
            _log.error("the token file cannot be used, so %s: %s", in_force, found)
        else:
            _log.info("the token file has changed; valid tokens: %d", len(found))


def digest_of(token: str) -> bytes:
    """Return the SHA-256 digest of a token.

    :raises TypeError: the token is not a string.
    :raises ValueError: no client could send the token; the message does not show it.
    """
    if not re.fullmatch(B64TOKEN, token) or token.lower() == "bearer":  # PLANTS_TOKENS="Bearer secret" would be two.
        raise ValueError(
            "a token consists of letters, digits and -._~+/ (with = only at its end), see RFC 6750, and is not Bearer"
        )
    return hashlib.sha256(token.encode()).digest()


def _read(path: Path) -> frozenset[bytes]:
    """Return the digests of the tokens in a file."""
    if not stat.S_ISREG(path.stat().st_mode):  # Opening or reading a pipe or a device could block forever.
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError("it is larger than 1 MiB")
    digests = set()
    # Editors on Windows begin a file with a byte order mark.
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        try:
            digest = _SHA256_LINE.fullmatch(entry)
            digests.add(bytes.fromhex(digest[1]) if digest else digest_of(entry))
        except ValueError:
            raise ValueError(f"line {number} is neither a token (RFC 6750) nor sha256: and 64 hex digits") from None
    if not digests:
        raise ValueError("the file has no token")
    return frozenset(digests)
