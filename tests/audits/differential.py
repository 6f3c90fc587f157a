"""Send thousands of odd requests to this server and to others, and print where it accepts what they reject.

    python -m tests.audits.differential
    python -m tests.audits.differential --cases 20000 --seed 7

The others are Gunicorn's threaded worker, Node and Go (both must be installed). A plain request follows each one; if
a server sees another end of the odd request, its response to the plain one differs or is missing. The exit status is 0
if this server accepts nothing that another rejects, sees the same number of requests with the same bodies, except where
``EXPLAINED`` has a reason, and parses the same in one packet and in several.
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

from tests.audits.odd_requests import Case, cases
from tests.audits.report import Verdict, audit_parser, report
from tests.support.hosted import CHECKOUT

PEERS = Path(__file__).with_name("peers")
# If a server has not responded after this time, it is waiting for more input.
QUIET_SECONDS = 0.6
# A busy machine may only be slow, so a request without a response is sent again with this timeout.
PATIENT_SECONDS = 10.0
# Those methods in these requests that Node knows.
NODE_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY")
SENTINEL = b"GET /sentinel HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class Understood(NamedTuple):
    """How a server parsed the bytes of a connection: an echo for each accepted request, then the end."""

    echoes: tuple[tuple[str, str, str], ...]
    end: str  # the status of a rejection, "closed" or "waits"

    def __str__(self) -> str:
        return f"{[f'{method} {target} {body!r:.60}' for method, target, body in self.echoes]}, then {self.end}"


class Peer(NamedTuple):
    name: str
    port: int

    def understand(self, data: bytes, *cuts: int, quiet: float = QUIET_SECONDS) -> Understood:
        """Send data in pieces, followed by a plain request, and return how the server parsed both."""
        whole = data + SENTINEL
        pieces = [whole[start:end] for start, end in pairwise([0, *sorted(cuts), len(whole)])]
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            heard = b""
            try:
                for number, piece in enumerate(pieces):
                    if number:
                        time.sleep(0.005)
                    sock.sendall(piece)
                sock.settimeout(quiet)
                while received := sock.recv(65536):
                    heard += received
                end = "closed"
            except TimeoutError:
                end = "waits"
            except OSError:
                end = "closed"
        return _read(heard, end)


def _read(heard: bytes, end: str) -> Understood:
    echoes: list[tuple[str, str, str]] = []
    while heard:
        head, found, rest = heard.partition(b"\r\n\r\n")
        status = head[9:12].decode("latin-1")
        if not found:
            return Understood(tuple(echoes), f"{status} cut short")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = rest[: int(length[1])] if length else rest
        if status == "100":
            heard = rest
            continue
        if status != "200":
            return Understood(tuple(echoes), status)
        try:
            echo = json.loads(body)
            echoes.append((echo["method"], echo["target"], echo["body"]))
            heard = rest[len(body) :]
        except ValueError:
            # HEAD: the length is that of a body that does not come.
            echoes.append(("HEAD", "", ""))
            heard = rest
    return Understood(tuple(echoes), end)


@contextlib.contextmanager
def running(name: str, command: list[str], port_pattern: str, *, log: Path) -> Iterator[Peer]:
    """Run a server that prints the port it listens at."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=CHECKOUT) as process:
        try:
            give_up = time.monotonic() + 60
            while not (port := re.search(port_pattern, log.read_text())):
                if time.monotonic() > give_up or process.poll() is not None:
                    raise RuntimeError(f"{name} does not listen: {log.read_text()[-500:]}")
                time.sleep(0.05)
            yield Peer(name, int(port[1]))
        finally:
            process.terminate()


@contextlib.contextmanager
def peers(worker_class: str) -> Iterator[list[Peer]]:
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
            "ours": ([*gunicorn, f"--worker-class={worker_class}"], listening),
            "gthread": ([*gunicorn, "--worker-class=gthread", "--threads=16"], listening),
            "node": (["node", str(PEERS / "echo.js")], r"^(\d+)\n"),
            "go": ([str(program)], r"^(\d+)\n"),
        }
        yield [
            stack.enter_context(running(name, command, pattern, log=Path(folder, f"{name}.log")))
            for name, (command, pattern) in commands.items()
        ]


def difference(ours: Understood, other: Understood) -> str:
    """Describe what this server accepts and another rejects, or parses differently; return "" if nothing."""
    for number, echo in enumerate(ours.echoes):
        if number >= len(other.echoes):
            return f"takes request {number + 1}, for which it has {other.end}"
        method, _, body = other.echoes[number]
        if (method, body) != (echo[0], echo[2]):
            return f"understands {echo[0]} {echo[2]!r:.40} where it understands {method} {body!r:.40}"
    return ""


BAD_SPACE = "white space beside the signs of an extension must be read (RFC 9112, section 7.1.1)"
# The other's name, a pattern of what is sent, and why this server is right, or free, to differ; the first that fits.
EXPLAINED: tuple[tuple[str, str, str], ...] = (
    ("go", r"^\r\n|^[^\r].*\r\n\r\n\r\n$", "an empty line before a request is ignored (RFC 9112, section 2.2)"),
    ("go", r"^\S+ \S*%(?![0-9A-Fa-f]{2})", "a percent sign that begins no code is itself, as for the other two"),
    ("go", r"\r\n0{16,}4?\r\n", "zeros before a chunk's size are digits too (RFC 9112, section 7.1)"),
    ("go", r"\r\n4;a{4096,}\r\n", "an extension may be longer than Go's 4,096 bytes: here up to the limit of a field"),
    ("go", r"\r\n4[ \t]+;", BAD_SPACE),
    ("node", r"\r\n4(?:[ \t]+;|;[ \t]|;a[ \t]+=|;a=[ \t])", BAD_SPACE),
    (
        "node",
        rf"^\r?\n?(?!(?:{'|'.join(NODE_METHODS)}) )[^ ]+ ",
        "methods are the application's (RFC 9110, section 9.1)",
    ),
    ("node", r"^(?:\r\n)?CONNECT /", "a CONNECT of a path is the application's to refuse (405)"),
    ("node", r"(?i)\nContent-Length:[ \t]*\d+\t\r\n", "a tab may be behind a value (RFC 9110, section 5.6.3)"),
    ("node", r"(?i)\nUpgrade:", "an Upgrade may be ignored, and the request is answered (RFC 9110, section 7.8)"),
    ("node", r"(?i)\nProxy-Connection:", "Proxy-Connection is no field of HTTP (RFC 9112, appendix C.2.2)"),
    ("node", r"\r\n0\r\nConnection: close\r\n", "a trailer says nothing of the connection (RFC 9110, section 6.5.1)"),
)


def explanation(peer: str, what: str, data: bytes) -> str:
    # What is behind a CONNECT is never read.
    if data.lstrip().startswith(b"CONNECT") and not what.startswith("takes request 1"):
        return ""
    for name, pattern, reason in EXPLAINED:
        if name == peer and re.search(pattern.encode("latin-1"), data, re.DOTALL):
            return reason
    return ""


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--cases", type=int, default=4000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="other requests with another number (%(default)s)")
    parser.add_argument("--worker-class", default="plants.server.worker.Worker", help="of this server (%(default)s)")
    parser.add_argument("--show", type=int, default=20, help="how many cases of each kind are printed (%(default)s)")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[str]] = {}
    explained: Counter[str] = Counter()
    with peers(options.worker_class) as (ours, *others), ThreadPoolExecutor(32) as threads:
        for peer in (ours, *others):
            plain = peer.understand(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
            assert plain.echoes == (("POST", "/", "body"), ("GET", "/sentinel", "")), (peer.name, plain)

        pick = random.Random(options.seed)

        def compare(case: Case) -> tuple[Case, tuple[int, ...], list[Understood]]:
            cuts = tuple(pick.randrange(1, len(case.data + SENTINEL)) for _ in range(pick.choice([1, 2, 5])))
            understood = [peer.understand(case.data) for peer in (ours, *others)]
            return case, cuts, [ours.understand(case.data, *cuts), *understood]

        accepted = 0
        for case, cuts, (cut, mine, *theirs) in threads.map(compare, cases(options.cases, options.seed)):
            accepted += bool(mine.echoes)
            if (cut.echoes, cut.end[0]) != (mine.echoes, mine.end[0]):  # Which 4xx it is may depend on what came.
                text = f"{case.data[:300]!r} ({case.name})\n      whole: {mine}\n      cut at {cuts}: {cut}"
                found.setdefault(("itself", "it depends on the pieces"), []).append(text)
            for peer, heard in zip(others, theirs, strict=True):
                is_slow = heard.end == "waits" and difference(mine, heard)
                other = peer.understand(case.data, quiet=PATIENT_SECONDS) if is_slow else heard
                if what := difference(mine, other):
                    if reason := explanation(peer.name, what, case.data):
                        explained[f"{peer.name}: {reason}"] += 1
                    else:
                        text = f"{case.data[:300]!r} ({case.name})\n      ours: {mine}\n      {peer.name}: {other}"
                        found.setdefault((peer.name, re.sub(r"'[^']*'|\d+$", "", what)), []).append(text)
    for (name, what), texts in found.items():
        report(f"{len(texts)} x ours against {name}", Verdict(False, what))
        for text in texts[: options.show]:
            print(f"   {text}")
    for reason, number in explained.most_common():
        print(f"      {number} x {reason}")
    total = sum(map(len, found.values()))
    seen = f"{options.cases:,} requests, {accepted:,} accepted, {total:,} differences not explained"
    return int(not report("all servers", Verdict(not total, seen)))


if __name__ == "__main__":
    sys.exit(main())
