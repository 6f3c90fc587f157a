"""Send thousands of odd requests to this server and to others, and print where it accepts what they reject.

    python -m tests.audits.differential
    python -m tests.audits.differential --cases 20000 --seed 7

The others are Gunicorn's threaded worker, Node and Go. Node and Go must be installed. On each connection, a plain
request follows the odd one. If two servers disagree about the end of the odd request, their responses to the plain one
differ, or one of them sends none. The exit status is 0 if all of this is true:

- The result of this server does not depend on how the bytes are split into packets.
- This server accepts nothing that another rejects.
- In each request that it accepts, this server finds the same method and body as the others.

``EXPLAINED`` has the exceptions to the last two conditions, with their reasons.
"""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.audits.odd_requests import cases
from tests.audits.report import Verdict, audit_parser, report
from tests.support.hosted import CHECKOUT
from tests.support.process import PATIENCE_SECONDS, Process

PEERS = Path(__file__).with_name("peers")
# If a server has not responded after this time, it is waiting for more input.
QUIET_SECONDS = 0.6
# A server on a busy machine may respond late, so a request without a response is sent again with this timeout.
PATIENT_SECONDS = 10.0
# Node rejects every other method that the odd requests use.
NODE_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY")
SENTINEL = b"GET /sentinel HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class Parsed(NamedTuple):
    """How a server parsed the bytes of a connection: echoes of the accepted requests, and what followed the echoes."""

    echoes: tuple[tuple[str, str, str], ...]
    end: str  # "closed", "waits", or the status of a rejection or of an incomplete response

    def __str__(self) -> str:
        return f"{[f'{method} {target} {body!r:.60}' for method, target, body in self.echoes]}, then {self.end}"


class Peer(NamedTuple):
    name: str
    port: int

    def send(self, data: bytes, *cuts: int, quiet: float = QUIET_SECONDS) -> Parsed:
        """Send data in pieces, followed by a plain request, and return how the server parsed both."""
        whole = data + SENTINEL
        pieces = [whole[start:end] for start, end in pairwise([0, *sorted(cuts), len(whole)])]
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            try:
                for number, piece in enumerate(pieces):
                    if number:
                        time.sleep(0.005)
                    sock.sendall(piece)
                sock.settimeout(quiet)
                while data := sock.recv(65536):
                    received += data
                end = "closed"
            except TimeoutError:
                end = "waits"
            except OSError:
                end = "closed"
        return _read(received, end)


def _read(received: bytes, end: str) -> Parsed:
    echoes: list[tuple[str, str, str]] = []
    while received:
        head, found, received = received.partition(b"\r\n\r\n")
        status = head[9:12].decode("latin-1")
        if not found:
            return Parsed(tuple(echoes), f"{status} cut short")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = received[: int(length[1])] if length else received
        if status == "100":
            continue
        if status != "200":
            return Parsed(tuple(echoes), status)
        try:
            echo = json.loads(body)
            echoes.append((echo["method"], echo["target"], echo["body"]))
            received = received[len(body) :]
        except ValueError:
            # A response to HEAD has the length of a body, but no body.
            echoes.append(("HEAD", "", ""))
    return Parsed(tuple(echoes), end)


@contextlib.contextmanager
def peers() -> Iterator[list[Peer]]:
    """Run the four servers, this one first."""
    gunicorn = [sys.executable, "-m", "gunicorn", "--bind=127.0.0.1:0", "--no-control-socket", "--log-level=info"]
    gunicorn += ["tests.audits.peers.echo:app"]
    listening = r"Listening at: http://127\.0\.0\.1:(\d+)"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        program = Path(folder, "echo")
        environ = os.environ | {"GOCACHE": f"{folder}/cache", "GO111MODULE": "off"}
        go = shutil.which("go") or "/usr/bin/go"
        subprocess.run([go, "build", "-o", program, PEERS / "echo.go"], check=True, env=environ)
        commands = {
            "ours": ([*gunicorn, "--worker-class=plants.server.worker.Worker"], listening),
            "gthread": ([*gunicorn, "--worker-class=gthread", "--threads=16"], listening),
            "node": (["node", str(PEERS / "echo.js")], r"^(\d+)\n"),
            "go": ([str(program)], r"^(\d+)\n"),
        }
        ports = []
        for command, pattern in commands.values():
            server = stack.enter_context(Process(command, cwd=CHECKOUT, env=environ))
            ports.append(int(server.wait_for(pattern)[1]))
        yield list(map(Peer, commands, ports))


def difference(ours: Parsed, other: Parsed) -> str:
    """Describe the first request that this server accepts and the other rejects or parses differently, or return ""."""
    for number, echo in enumerate(ours.echoes):
        if number >= len(other.echoes):
            return f"accepts request {number + 1}, and the other server does not ({other.end})"
        method, _, body = other.echoes[number]
        if (method, body) != (echo[0], echo[2]):
            return f"parses {echo[0]} {echo[2]!r:.40} where the other server parses {method} {body!r:.40}"
    return ""


EXTENSION_SPACE = "white space around ; and = in an extension must be accepted (RFC 9112, section 7.1.1)"
# The other server, a pattern of the sent bytes, and why this server may differ. The first match applies.
EXPLAINED: tuple[tuple[str, str, str], ...] = (
    ("go", r"^\r\n|^[^\r].*\r\n\r\n\r\n$", "an empty line before a request is ignored (RFC 9112, section 2.2)"),
    ("go", r"^\S+ \S*%(?![0-9A-Fa-f]{2})", "a percent sign that starts no escape is literal (Node and gthread agree)"),
    ("go", r"\r\n0{16,}4?\r\n", "a chunk's size may have leading zeros (RFC 9112, section 7.1)"),
    ("go", r"\r\n4[ \t]+;", EXTENSION_SPACE),
    ("node", r"\r\n4(?:[ \t]+;|;[ \t]|;a[ \t]+=|;a=[ \t])", EXTENSION_SPACE),
    (
        "node",
        rf"^\r?\n?(?!(?:{'|'.join(NODE_METHODS)}) )[^ ]+ ",
        "the application decides which methods it knows (RFC 9110, section 9.1)",
    ),
    ("node", r"^(?:\r\n)?CONNECT /", "a CONNECT with a path is rejected by the application, not by the server (405)"),
    ("node", r"(?i)\nContent-Length:[ \t]*\d+\t\r\n", "a tab may follow a value (RFC 9110, section 5.6.3)"),
    ("node", r"(?i)\nUpgrade:", "a server may ignore Upgrade and respond as usual (RFC 9110, section 7.8)"),
    ("node", r"(?i)\nProxy-Connection:", "Proxy-Connection is not a field of HTTP (RFC 9112, appendix C.2.2)"),
)


def explanation(peer: str, what: str, data: bytes) -> str:
    # This server must accept no request behind a CONNECT. So ``EXPLAINED`` may excuse only the CONNECT itself.
    if data.lstrip().startswith(b"CONNECT") and not what.startswith("accepts request 1,"):
        return ""
    for name, pattern, reason in EXPLAINED:
        if name == peer and re.search(pattern.encode("latin-1"), data, re.DOTALL):
            return reason
    return ""


def differences(data: bytes, cuts: tuple[int, ...], ours: Peer, others: list[Peer]) -> Iterator[str]:
    """Send a request to all servers, and yield a finding for each difference; that of a failure starts with "!"."""
    mine, cut = ours.send(data), ours.send(data, *cuts)
    if cut != mine:  # One of them may be late.
        mine, cut = (ours.send(data, *each, quiet=PATIENT_SECONDS) for each in ((), cuts))
    if mine.echoes:
        yield "accepted"
    if (cut.echoes, cut.end[0]) != (mine.echoes, mine.end[0]):  # The exact 4xx may depend on what has arrived.
        yield f"! {data[:300]!r}\n      whole: {mine}\n      cut at {cuts}: {cut}"
    for peer in others:
        theirs = peer.send(data)
        if theirs.end == "waits" and difference(mine, theirs):
            theirs = peer.send(data, quiet=PATIENT_SECONDS)
        if what := difference(mine, theirs):
            reason = explanation(peer.name, what, data)
            failure = f"! {what}: {data[:300]!r}\n      ours: {mine}\n      {peer.name}: {theirs}"
            yield f"{peer.name}: {reason}" if reason else failure


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--cases", type=int, default=4000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random requests (%(default)s)")
    options = parser.parse_args()
    pick = random.Random(options.seed)
    findings: Counter[str] = Counter()
    with peers() as (ours, *others), ThreadPoolExecutor(32) as threads:
        for peer in (ours, *others):
            plain = peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", quiet=PATIENCE_SECONDS)
            assert plain.echoes == (("POST", "/", "body"), ("GET", "/sentinel", "")), (peer.name, plain)

        def compare(data: bytes) -> list[str]:
            cuts = tuple(pick.randrange(1, len(data + SENTINEL)) for _ in range(pick.choice([1, 2, 5])))
            return list(differences(data, cuts, ours, others))

        for found in threads.map(compare, cases(options.cases, options.seed)):
            findings.update(found)
    for finding, number in sorted(findings.items()):
        print(f"{number:9,} {finding}")
    failures = sum(finding.startswith("!") for finding in findings)
    return report(
        "all servers", Verdict(not failures, f"{options.cases:,} requests, {failures:,} unexplained differences")
    )


if __name__ == "__main__":
    sys.exit(main())
