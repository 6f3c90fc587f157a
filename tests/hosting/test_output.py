"""Log output to a pipe whose reader stalls, to a full or frozen disk, and from several processes."""

import atexit
import os
import resource
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


def write(output: Output, lines: str) -> None:
    output.write(lines)
    output.flush()


@contextmanager
def output_to(target: str | int) -> Iterator[Output]:
    output = Output(target)
    yield output
    atexit.unregister(output.drain)  # When this process ends, the descriptor may be another file's.


@pytest.fixture
def pipe() -> Iterator[tuple[int, Output]]:
    """The end of a pipe from which to read, and an output to the other end."""
    read_end, write_end = os.pipe()
    with output_to(write_end) as output:
        yield read_end, output
    assert os.get_blocking(write_end)  # for other processes
    os.close(read_end)
    os.close(write_end)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def file_output(log_file: Path) -> Iterator[Output]:
    with output_to(str(log_file)) as output:
        yield output
        os.close(output.descriptor)


def test_lines_beyond_1_mib_are_dropped_and_counted(pipe: tuple[int, Output], caplog: pytest.LogCaptureFixture) -> None:
    read_end, output = pipe
    lines = [f"{number:1023}\n" for number in range(2000)]
    for line in lines:
        write(output, line)
    assert not caplog.messages
    received = os.read(read_end, 2 * PIPE_BYTES).decode()
    write(output, "")
    write(output, "next\n")
    while not received.endswith("next\n"):
        received += os.read(read_end, 2 * PIPE_BYTES).decode()
        output.flush()
    written = received.count("\n") - 1
    assert received == "".join(lines[:written]) + "next\n"
    assert caplog.messages == [f"log lines were dropped because they could not be written: {2000 - written}"]
    write(output, "last\n")
    assert len(caplog.messages) == 1


def test_a_pipe_that_another_process_fills_first_never_blocks(
    pipe: tuple[int, Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "select", lambda _reads, writes, *_: ([], writes, []))
    write(pipe[1], LINE * 200)
    assert 0 < os.read(pipe[0], 2 * PIPE_BYTES).count(b"\n") < 200


def test_no_gap_is_left_if_another_program_truncates_the_file(log_file: Path) -> None:
    with log_file.open("wb") as file, output_to(file.fileno()) as output:
        for line in ("first\n", "second\n"):
            os.truncate(log_file, 0)
            write(output, line)
            assert log_file.read_text() == line
        os.close(output.descriptor)


def test_a_full_disk_delays_lines_and_tears_none(log_file: Path, file_output: Output) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        for line in ("first\n", "second\n", "third\n"):
            write(file_output, line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log_file.read_text() == "first\nse"
    file_output.flush()
    assert log_file.read_text() == "first\nsecond\nthird\n"


def test_a_frozen_disk_delays_nobody(log_file: Path, file_output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    write_now = os.write
    thawed = threading.Event()

    def waiting_for_the_disk(descriptor: int, data: bytes) -> int:
        thawed.wait(PATIENCE_SECONDS)
        return write_now(descriptor, data)

    def threads() -> int:
        return sum(thread.name == logs.__name__ for thread in threading.enumerate())

    monkeypatch.setattr(os, "write", waiting_for_the_disk)
    monkeypatch.setattr(logs, "MASTER_PID", 0)
    for line in ("first\n", "second\n"):
        write(file_output, line)
    assert log_file.read_text() == ""
    assert threads() == 1
    thawed.set()
    wait_until(lambda: log_file.read_text() == "first\nsecond\n")
    wait_until(lambda: threads() == 0)


def test_a_thread_writes_whole_lines_of_at_most_pipe_buf_to_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be opened again to make it non-blocking, and neither can a pipe of another user."""
    write_now, writers = os.write, set()

    def recorded(descriptor: int, data: bytes) -> int:
        writers.add(threading.current_thread().name)
        return write_now(descriptor, data)

    monkeypatch.setattr(os, "write", recorded)
    monkeypatch.setattr(logs, "MASTER_PID", 0)
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # It keeps the bounds of each write.
    lines = [f"{number}\n" * (number % 7 + 1) for number in range(500)]
    with ours, theirs, output_to(ours.fileno()) as output:
        write(output, "".join(lines))
        received: list[str] = []
        while sum(map(len, received)) < sum(map(len, lines)):
            received.append(theirs.recv(2 * PIPE_BUF).decode())
    assert "".join(received) == "".join(lines)
    assert all(text.endswith("\n") for text in received)
    assert max(map(len, received)) <= PIPE_BUF
    assert writers == {logs.__name__}


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
    write(file_output, LINE)
    assert log_file.read_text() == LINE


PROGRAM = """
import os
from plants.hosting.logs import Output

output = Output(1)
"""


def test_processes_that_share_a_pipe_do_not_mix_lines() -> None:
    program = """
output.write("parent\\n")  # It waits when the process forks, and is written when the process ends.
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
    output = subprocess.check_output([sys.executable, "-c", PROGRAM + program], text=True, timeout=PATIENCE_SECONDS)
    *lines, last = output.splitlines()
    assert last == "parent"
    for name in "abcd":
        assert [len(line) for line in lines if line[0] == name] == [number % 300 + 1 for number in range(2000)]
    assert all(len({*line}) == 1 for line in lines)


def test_a_process_ends_although_its_reader_has_stalled() -> None:
    command = [sys.executable, "-c", f"{PROGRAM}output.write({LINE!r} * 200)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
