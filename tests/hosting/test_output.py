"""Log output to a pipe whose reader stalls, to a full disk, and to a closed descriptor."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import PIPE_BUF, select

import pytest

from plants.hosting import logs
from plants.hosting.logs import Output
from tests.support.process import PATIENCE_SECONDS, wait_until

PIPE_BYTES = 65536
LINE = "x" * 1023 + "\n"


def dropped(count: int) -> str:
    return f"log lines were dropped because they could not be written; since the start: {count}"


class Pipe:
    def __init__(self, *, has_thread: bool) -> None:
        self.read_end, self.write_end = os.pipe()
        self.output = Output(self.write_end, has_thread=has_thread)

    def read_until(self, end: str) -> str:
        """Read what ends with this text."""
        received = ""
        while not received.endswith(end):
            received += os.read(self.read_end, 2 * PIPE_BYTES).decode()
        return received

    def read_for(self, seconds: float) -> str:
        """Read what arrives within this time, if anything does."""
        is_readable = select([self.read_end], [], [], seconds)[0]
        return os.read(self.read_end, 2 * PIPE_BYTES).decode() if is_readable else ""


@pytest.fixture(params=[True, False], ids=["worker", "master"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    pipe = Pipe(has_thread=request.param)
    yield pipe
    os.close(pipe.read_end)
    os.close(pipe.write_end)


def test_lines_are_dropped_and_counted_while_a_pipe_is_full(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "MAX_QUEUED_BYTES", 10 * len(LINE))
    for _ in range(200):
        pipe.output.write(LINE)
    received, lines = pipe.read_until("\n"), 200
    while not caplog.messages:
        pipe.output.write("next\n")  # It is dropped, too, while the lines that were just read still count as queued.
        received, lines = received + pipe.read_for(0.1), lines + 1
    pipe.output.write("end\n")
    received += pipe.read_until("end\n")
    assert 0 < received.count(LINE) < 200
    # The first report may have been made before the last line was dropped.
    wait_until(lambda: caplog.messages[-1] == dropped(lines + 1 - received.count("\n")))


@pytest.mark.parametrize("pipe", [True], indirect=True)
def test_queued_lines_reach_a_slow_reader_in_order(pipe: Pipe) -> None:
    lines = [f"{number} {LINE}" for number in range(500)]
    for line in lines:
        pipe.output.write(line)
    pipe.output.write("end\n")
    assert pipe.read_until("end\n") == "".join(lines) + "end\n"


def test_each_write_has_whole_lines_of_at_most_pipe_buf() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # It keeps the bounds of each write.
    with ours, theirs:
        lines = [f"{number}\n" * (number % 7 + 1) for number in range(500)]
        Output(ours.fileno(), has_thread=False).write("".join(lines))
        received: list[str] = []
        while sum(map(len, received)) < sum(map(len, lines)):
            received.append(theirs.recv(2 * PIPE_BUF).decode())
    assert "".join(received) == "".join(lines)
    assert all(text.endswith("\n") for text in received)
    assert max(map(len, received)) <= PIPE_BUF


def test_lines_for_a_full_disk_are_dropped_and_counted(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    failed = bytearray()

    def recording_failures(descriptor: int, data: bytes) -> int:
        try:
            return write(descriptor, data)
        except OSError:
            failed.extend(data)
            raise

    monkeypatch.setattr(os, "write", recording_failures)
    end = os.dup(pipe.write_end)
    with Path("/dev/full").open("w") as full:
        os.dup2(full.fileno(), pipe.write_end)
    for _ in range(2):
        pipe.output.write(LINE)
    wait_until(lambda: failed.decode() == 2 * LINE)
    os.dup2(end, pipe.write_end)
    os.close(end)
    pipe.output.write("next\n")
    assert pipe.read_until("\n") == "next\n"
    wait_until(lambda: caplog.messages == [dropped(2)])


def test_a_line_after_a_torn_one_is_a_line_of_its_own(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    free_bytes = [0, 2]

    def filling_the_disk(descriptor: int, data: bytes) -> int:
        size = free_bytes.pop() if descriptor == pipe.write_end and free_bytes else len(data)
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:size])

    monkeypatch.setattr(os, "write", filling_the_disk)
    pipe.output.write("first\n")
    wait_until(lambda: not free_bytes)
    pipe.output.write("next\n")
    assert pipe.read_until("next\n") == "fi\nnext\n"
    wait_until(lambda: caplog.messages == [dropped(1)])


def test_a_write_that_would_block_is_repeated(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    errors = [BlockingIOError]

    def rejecting_once(descriptor: int, data: bytes) -> int:
        if descriptor == pipe.write_end and errors:
            raise errors.pop()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", rejecting_once)
    pipe.output.write("first\n")
    assert pipe.read_until("\n") == "first\n"
    assert not errors


SCRIPT = """
import os
from plants.hosting.logs import Output

output = Output(1)
output.write("parent\\n")
if not os.fork():
    output.write("child\\n")
"""


def test_a_process_that_ends_or_forks_writes_its_lines_once() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert sorted(result.stdout.splitlines()) == ["child", "parent"]


def test_a_process_without_another_thread_writes_its_lines(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", fail)
    Output(1).write(LINE)
    assert capfd.readouterr().out == LINE


def test_a_process_ends_although_its_reader_has_stalled() -> None:
    script = f"from plants.hosting.logs import Output; Output(1).write({LINE!r} * 200)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
