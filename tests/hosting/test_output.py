"""Log output to a pipe whose reader stalls, to a full or frozen disk, and from several processes."""

import atexit
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import PIPE_BUF

import pytest

from plants.hosting import logs
from plants.hosting.logs import Output
from tests.support.process import PATIENCE_SECONDS, wait_until

PIPE_BYTES = 65536
LINE = "x" * 1023 + "\n"


def dropped(count: int) -> str:
    return f"log lines were dropped because they could not be written: {count}"


@contextmanager
def output_to(descriptor: int) -> Iterator[Output]:
    output = Output(descriptor)
    yield output
    atexit.unregister(output.stop)  # When this process ends, the descriptor may be another file's.


class Pipe:
    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.output: Output

    def write(self, lines: str) -> None:
        self.output.write(lines)
        self.output.flush()

    def read(self) -> str:
        """Read what is in the pipe."""
        return os.read(self.read_end, 2 * PIPE_BYTES).decode()

    def read_until(self, end: str) -> str:
        """Read what ends with this text, and flush again and again, as the event loop does."""
        received = ""
        while not received.endswith(end):
            self.output.flush()
            received += self.read()
        return received


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    with output_to(pipe.write_end) as pipe.output:
        yield pipe
    os.close(pipe.read_end)
    os.close(pipe.write_end)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def file_output(log_file: Path) -> Iterator[Output]:
    with log_file.open("ab") as file, output_to(file.fileno()) as output:
        yield output


def test_lines_beyond_1_mib_are_dropped_and_counted(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2000):
        pipe.write(LINE)
    assert not caplog.messages
    written = pipe.read().count(LINE)
    pipe.output.flush()
    pipe.write("next\n")
    assert pipe.read_until("next\n").count(LINE) == 1024
    assert caplog.messages == [dropped(2000 - written - 1024)]
    pipe.write("last\n")
    assert pipe.read() == "last\n"
    assert len(caplog.messages) == 1


def test_waiting_lines_reach_a_slow_reader_in_order(pipe: Pipe) -> None:
    lines = [f"{number} {LINE}" for number in range(500)]
    for line in lines:
        pipe.write(line)
    pipe.write("end\n")
    assert pipe.read_until("end\n") == "".join(lines) + "end\n"


def test_a_pipe_that_another_process_fills_first_never_blocks(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "select", lambda _reads, writes, *_: ([], writes, []))
    pipe.write(LINE * 200)
    assert 0 < pipe.read().count(LINE) < 200
    assert os.get_blocking(pipe.write_end)


def test_each_write_has_whole_lines_of_at_most_pipe_buf() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # It keeps the bounds of each write.
    lines = [f"{number}\n" * (number % 7 + 1) for number in range(500)]
    with ours, theirs, output_to(ours.fileno()) as output:
        output.write("".join(lines))
        output.flush()
        received: list[str] = []
        while sum(map(len, received)) < sum(map(len, lines)):
            received.append(theirs.recv(2 * PIPE_BUF).decode())
    assert "".join(received) == "".join(lines)
    assert all(text.endswith("\n") for text in received)
    assert max(map(len, received)) <= PIPE_BUF


def test_a_full_disk_delays_lines_and_tears_none(
    log_file: Path, file_output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    free_bytes = 8

    def filling_the_disk(descriptor: int, data: bytes) -> int:
        nonlocal free_bytes
        if not free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:free_bytes])
        free_bytes -= written
        return written

    monkeypatch.setattr(os, "write", filling_the_disk)
    for line in ("first\n", "second\n", "third\n"):
        file_output.write(line)
        file_output.flush()
    assert log_file.read_text() == "first\nse"
    free_bytes = 100
    file_output.flush()
    assert log_file.read_text() == "first\nsecond\nthird\n"


def test_a_frozen_disk_delays_nobody(log_file: Path, file_output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    thawed = threading.Event()

    def waiting_for_the_disk(descriptor: int, data: bytes) -> int:
        thawed.wait(PATIENCE_SECONDS)
        return write(descriptor, data)

    def threads() -> int:
        return sum(thread.name == logs.__name__ for thread in threading.enumerate())

    monkeypatch.setattr(os, "write", waiting_for_the_disk)
    monkeypatch.setattr(logs, "MASTER_PID", 0)
    for line in ("first\n", "second\n"):
        file_output.write(line)
        file_output.flush()
    assert log_file.read_text() == ""
    assert threads() == 1
    thawed.set()
    wait_until(lambda: log_file.read_text() == "first\nsecond\n")
    wait_until(lambda: threads() == 0)


@pytest.mark.parametrize("is_master", [True, False])
def test_a_process_without_another_thread_writes_to_a_file(
    is_master: bool, log_file: Path, file_output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: object) -> None:
        assert not is_master
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", fail)
    if not is_master:
        monkeypatch.setattr(logs, "MASTER_PID", 0)
    file_output.write(LINE)
    file_output.flush()
    assert log_file.read_text() == LINE


PROGRAM = """
import os
from plants.hosting.logs import Output

output = Output(1)
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", PROGRAM + program]
    return subprocess.check_output(command, text=True, timeout=PATIENCE_SECONDS)


def test_a_process_that_ends_or_forks_writes_its_lines_once() -> None:
    lines = run("output.write('parent\\n')\nif not os.fork(): output.write('child\\n')\nelse: os.wait()")
    assert lines == "child\nparent\n"


def test_processes_that_share_a_pipe_do_not_mix_lines() -> None:
    program = """
for name in "abcd":
    if not os.fork():
        for number in range(2000):
            output.write(name * (number % 300 + 1) + "\\n")
            output.flush()
        break
else:
    for _ in range(4):
        os.wait()
"""
    lines = run(program).splitlines()
    for name in "abcd":
        assert [len(line) for line in lines if line[0] == name] == [number % 300 + 1 for number in range(2000)]
    assert all(len({*line}) == 1 for line in lines)


def test_a_process_ends_although_its_reader_has_stalled() -> None:
    command = [sys.executable, "-c", f"{PROGRAM}output.write({LINE!r} * 200)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
