"""Log output to a pipe whose reader stalls, to a full disk, and to a file."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plants.hosting import logs
from plants.hosting.logs import Output

PIPE_BYTES = 65536
LINE = "x" * 1023 + "\n"


def report(count: int) -> str:
    return f"{count} dropped\n"


class Pipe:
    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.output = Output(self.write_end, report)

    def read(self) -> str:
        return os.read(self.read_end, 2 * PIPE_BYTES).decode()


@pytest.fixture(params=["RWF_NOWAIT", "poll"])
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.setattr(logs, "MAX_WAIT_SECONDS", 0.01)
    if request.param == "poll":  # Before Linux 6.4, RWF_NOWAIT does not work with pipes.
        monkeypatch.setattr(os, "RWF_NOWAIT", 0)
    pipe = Pipe()
    yield pipe
    os.close(pipe.read_end)
    os.close(pipe.write_end)


def test_lines_are_dropped_and_counted_while_a_pipe_is_full(pipe: Pipe) -> None:
    for _ in range(100):
        pipe.output.write(LINE)
    written = pipe.read().count(LINE)
    assert 0 < written <= PIPE_BYTES // len(LINE)
    pipe.output.write("last\n")
    pipe.output.write("one more\n")
    assert pipe.read() == f"{100 - written} dropped\nlast\none more\n"


def test_a_partly_written_line_is_ended_before_the_next(pipe: Pipe) -> None:
    pipe.output.write("x" * PIPE_BYTES + "y\n")
    assert pipe.read() == "x" * PIPE_BYTES
    pipe.output.write("next\n")
    assert pipe.read() == "\n1 dropped\nnext\n"


def test_a_write_waits_for_a_reader_that_is_slow(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAIT_SECONDS", 30)
    slow = Output(pipe.write_end, report)

    def write() -> None:
        slow.write(LINE * 1000)  # This is more than the pipe holds.
        os.write(pipe.write_end, b"end")

    writer = threading.Thread(target=write)
    writer.start()
    received = ""
    while not received.endswith("end"):
        received += pipe.read()
    writer.join()
    assert received == LINE * 1000 + "end"


def test_a_write_to_a_full_disk_does_not_raise(pipe: Pipe) -> None:
    with Path("/dev/full").open("w") as full:
        os.dup2(full.fileno(), pipe.write_end)
    for _ in range(2):
        pipe.output.write(LINE)


def reject(*_: object) -> int:
    raise BlockingIOError


def test_a_descriptor_that_is_ready_but_rejects_every_write_ends_the_wait(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So do some file systems (XFS, btrfs) with RWF_NOWAIT.
    with monkeypatch.context() as rejecting:
        rejecting.setattr(os, "pwritev", reject)
        rejecting.setattr(os, "write", reject)
        pipe.output.write(LINE)
    pipe.output.write("next\n")
    assert pipe.read() == "1 dropped\nnext\n"


def test_a_write_to_a_file_uses_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", reject)
    with (tmp_path / "log").open("w") as file:
        Output(file.fileno(), report).write(LINE)
    assert (tmp_path / "log").read_text() == LINE


def test_a_closed_descriptor_drops_its_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        descriptor = file.fileno()
    Output(descriptor, report).write(LINE)
