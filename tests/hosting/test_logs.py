"""The log: the members of each line, forged lines, Gunicorn's log settings, and output that is not read."""

import atexit
import json
import logging
import os
import pty
import re
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from select import PIPE_BUF

import pytest

from plants.hosting import logs
from plants.hosting.logs import AccessLog, Formatter, Output
from plants.server.response import make_response
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import SERVE, Service, output_of, run, serving
from tests.support.loop_driver import new_exchange
from tests.support.process import END, PATIENCE_SECONDS, children, text_of, wait_for_workers, wait_until

TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
# If this path were logged verbatim, it would end its line and forge a second one, and have the columns of a success. It
# would also be longer than PIPE_BUF, if it were not cut.
FORGED = (
    "/caf%C3%A9%20200%2015%E2%80%A8%0A%0D%1B[2J%22,%22level%22:%22info%22%7D%0A2026-11-21T00:00:00.000000Z%20info%C2%85"
    + "%FF" * 1300
)

OWN = """
wsgi_app = "own:app"

import logging
from plants.wsgi import app as service

SECRETS = "the first secret", "the last secret\\n2026-11-21T00:00:00.000000Z info\\x1b[2J"

def app(environ, start_response):
    if environ["PATH_INFO"] != "/faulty":
        return service(environ, start_response)
    del environ["REMOTE_ADDR"]
    logging.getLogger("plants").warning("logged by plants")
    print("written to wsgi.errors\\n", file=environ["wsgi.errors"])  # It writes a second line end by itself.
    try:
        raise KeyError(SECRETS[0])
    except KeyError:
        raise SystemExit(SECRETS[1])
"""


@pytest.fixture(scope="module")
def text_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the log in text, at the level debug."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN)
    with serving("-c=own.py", cwd=folder, PLANTS_LOG_FORMAT="text") as service:
        yield service


def test_each_request_is_logged_on_standard_output_with_a_level(service: Service) -> None:
    headers = [AUTH, JSON_TYPE, ("X-Forwarded-For", "192.0.2.1")]
    created = service.send(new_plant(id=801), path="/plants?a=1", headers=[*headers, ("X-Request-ID", "first")])
    failed = service.send(b'{"id": "1", "name": "Fern"}', headers=[*headers, ("X-Request-ID", "second")])
    both = {"logger": "plants.access", "method": "POST", "path": "/plants", "route": "/plants"}
    both["remote_ip"] = "127.0.0.1"
    first = {"level": "info", "request_id": "first", "status": 200, "size": len(created.body)}
    second = {"level": "warning", "request_id": "second", "status": 400, "size": len(failed.body)}
    second |= {"error_code": 40002, "error_message": failed.message}
    for request_id, expected in (("first", first), ("second", second)):
        line = service.line_of(request_id)
        age = datetime.now(UTC) - datetime.fromisoformat(line.pop("ts"))
        assert 0 <= age.total_seconds() < 3600
        assert 0 <= line.pop("duration") < 10
        assert line == both | expected
    for method, path, level in (("OPTIONS", "/plants", "info"), ("GET", "/", "debug"), ("HEAD", "/livez", "debug")):
        response = service.send(method=method, path=path, headers=[AUTH])
        expected = {"level": level, "size": len(response.body)}
        assert service.line_of(response.headers["x-request-id"]).items() >= expected.items()


def test_the_access_log_of_another_worker_class_has_no_query() -> None:
    headers = [AUTH, JSON_TYPE, ("Referer", "http://a/?access_token=b")]
    with serving("-kgthread", PLANTS_LOG_FORMAT="text") as service:
        assert service.send(new_plant(), path="/plants?access_token=a", headers=headers).status == 200
        wait_until(lambda: any(" POST /plants 200 " in line for line in service.access))
        # When the service ends, its output is searched for this parameter.


@pytest.mark.parametrize("name", ["service", "text_service"])
def test_no_path_and_no_header_can_forge_a_line(name: str, request: pytest.FixtureRequest) -> None:
    service = request.getfixturevalue(name)
    hostile = [("X-Request-ID", 'a"\\u000a'), ("User-Agent", "\xff\x85\x9b"), ("Referer", '"}')]
    request_id = service.send(method="GET", path=FORGED, headers=hostile).headers["x-request-id"]
    (forged,) = wait_until(lambda: [line for line in service.access if request_id in line])
    assert forged.removesuffix("\n").isprintable()
    assert len(forged.encode()) <= PIPE_BUF
    if service.is_json:
        line = json.loads(forged)
        assert (line["level"], line["path"][:15]) == ("warning", "/café 200 15\u2028\n\r")
        assert line["path"].count("\ufffd") == 126  # The path is cut after 200 bytes.
    else:
        path = r"'/café 200 15\\u2028\\n\\r[^']*'"
        assert re.match(rf"{TIMESTAMP} warning plants\.access {request_id} GET {path} 401 ", forged)
        assert all(re.match(rf"{TIMESTAMP} \w+ plants\.access ", line) for line in service.access)


def test_the_text_format_is_human_readable(text_service: Service) -> None:
    text_service.wait_for(rf"^{TIMESTAMP} info gunicorn\.error (\d+) Booting worker with pid: \1$")
    text_service.send(new_plant(), path="/plants?a=1", headers=[AUTH, JSON_TYPE, ("X-Request-ID", "first")])
    text_service.send(b"[]", headers=[AUTH, JSON_TYPE, ("X-Request-ID", "second")])
    wait_until(lambda: "second" in "".join(text_service.access))
    first, second = text_service.access[-2:]
    end = r"\d+ \d\.\d{6} 127\.0\.0\.1\n"
    assert re.fullmatch(rf"{TIMESTAMP} info plants\.access first POST /plants 200 {end}", first)
    message = r"'The body is not a NewPlant\.[^']*'"
    assert re.fullmatch(rf"{TIMESTAMP} warning plants\.access second POST /plants 400 40002 {message} {end}", second)


def lines_of(service: Service, request_id: str) -> list[str]:
    """Make a request that fails, and return the lines of its three log records in the error log."""
    service.send(method="GET", path="/faulty", headers=[AUTH, ("X-Request-ID", request_id)])
    service.wait_for("the application failed")
    lines = [line for line in service.lines if re.search(rf'"{request_id}"| {request_id}$', line)]
    for line, text in zip(lines, ["logged by plants", "written to wsgi.errors", "the application failed"], strict=True):
        assert text in line
    return lines


def test_the_messages_in_a_debug_traceback_forge_no_line(text_service: Service) -> None:
    [*_, line] = lines_of(text_service, "first")
    text_service.wait_for("  2026-11-21")
    stack = [text for text in text_service.lines[text_service.lines.index(line) + 1 :] if text.startswith("  ")]
    assert stack[0] == "  Traceback (most recent call last):\n"
    assert "  KeyError: 'the first secret'\n" in stack
    assert stack[-2:] == ["  SystemExit: the last secret\n", "  2026-11-21T00:00:00.000000Z info\\x1b[2J\n"]


@pytest.mark.parametrize("is_json", [True, False])
def test_the_middle_of_a_long_traceback_or_message_is_cut_to_fit_into_pipe_buf(
    is_json: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "plants")
    long = "first" + "\xe9\n" * 9999 + "last"
    for message, error, parts in [
        ("failed", RuntimeError(long), ["failed", "RuntimeError: first", "[...]", "last"]),
        (long, None, ["first", "[...]", "last"]),
    ]:
        exc_info = (type(error), error, None) if error else None
        record = logging.LogRecord("plants", logging.ERROR, "", 1, message, None, exc_info)
        text = Formatter(is_json=is_json).format(record)
        assert len(text.encode()) < PIPE_BUF
        assert [text.count(part) for part in parts] == [1] * len(parts)


def test_a_log_is_text_if_its_own_stream_is_a_terminal() -> None:
    user, terminal = pty.openpty()
    name, exchange = os.ttyname(terminal), new_exchange()
    with os.fdopen(user) as screen:
        for log_format, begin in ((None, TIMESTAMP), ("json", '{"ts":')):
            env = {"PLANTS_LOG_FORMAT": log_format} if log_format else {}
            command = ["sh", "-c", 'exec "$@" 2> "$0"', name, *SERVE, "--bind=127.0.0.1:65536"]
            run(*command, PLANTS_TOKENS=TOKEN, **env)  # It logs that it starts, and prints why it ends.
            log = AccessLog(name, logging.INFO, log_format)
            log.write(exchange, make_response(exchange, 404, [], b""), (0, ""), 0.0)
            log.output.flush()
            lines = [screen.readline() for _ in range(3)]
            assert [bool(re.match(begin, line)) for line in lines] == [True, False, True]
    os.close(terminal)


def test_the_logs_go_to_files_and_usr1_opens_them_again(tmp_path: Path) -> None:
    file, renamed, errors = tmp_path / "access", tmp_path / "access.1", tmp_path / "errors"
    with serving(f"--access-logfile={file}", f"--error-logfile={errors}") as service:

        def send_until(request_id: str, path: Path) -> None:
            def is_logged() -> bool:
                service.send(method="GET", path="/livez", headers=[("X-Request-ID", request_id)])
                return request_id in text_of(path)

            wait_until(is_logged)

        send_until("first", file)
        file.rename(renamed)
        send_until("second", renamed)
        service.signal(signal.SIGUSR1)
        send_until("third", file)
        lines = renamed.read_text().splitlines() + file.read_text().splitlines()
        assert {json.loads(line)["logger"] for line in lines} == {"plants.access"}
        # Neither file can be opened again, neither by the master and the worker nor by a new worker.
        for path, old in ((file, tmp_path / "access.2"), (errors, tmp_path / "errors.1")):
            path.rename(old)
            path.mkdir()
        service.signal(signal.SIGUSR1)
        reason = "a log file cannot be opened again.* Is a directory: '(.*)'"
        wait_until(lambda: {*re.findall(reason, text_of(tmp_path / "errors.1"))} == {str(file), str(errors)})
        send_until("fourth", tmp_path / "access.2")
        [worker] = children(service.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait_for_workers(service.process.pid, 1, after=[worker])
        send_until("fifth", tmp_path / "access.2")
        file.rmdir()
        service.signal(signal.SIGUSR1)
        send_until("sixth", file)
        opened = [link.readlink() for link in Path(f"/proc/{service.process.pid}/fd").iterdir()]
        assert opened.count(file) == 1
    assert (service.access, service.lines) == ([END], [END])


def test_killed_workers_have_written_the_lines_of_their_responses(service: Service) -> None:
    with service.client() as client:
        for number in range(50):
            client.send(f"GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-ID: kill-{number}\r\n\r\n".encode()).response()
        # The response to this request arrives after the lines of those before.
        client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").response()
    workers = children(service.process.pid)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    wait_for_workers(service.process.pid, 2, after=workers)
    wait_until(lambda: sum('"request_id":"kill-' in line for line in service.access) == 50)
    assert not any("were lost" in line for line in service.lines)


def test_the_level_warning_omits_successes_and_messages_until_hup_sets_another(tmp_path: Path) -> None:
    conf = tmp_path / "own.py"
    conf.write_text(f"{OWN}loglevel = 'warning'\n")
    # --log-level in GUNICORN_CMD_ARGS would override the file.
    with serving("-c=own.py", cwd=tmp_path, GUNICORN_CMD_ARGS="") as service:
        [worker] = children(service.process.pid)
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        assert service.send(headers=[]).status == 401
        wait_until(lambda: service.access and service.lines)
        assert [json.loads(line)["status"] for line in service.access] == [401]
        assert ["all plants will be lost" in line for line in service.lines] == [True]
        _, written, failed = map(json.loads, lines_of(service, "first"))
        names = ["ts", "level", "logger", "pid", "msg", "request_id"]
        assert ([*written], [*failed]) == (names, [*names, "stacktrace"])
        assert written["msg"] == "written to wsgi.errors"
        stack = failed["stacktrace"]
        begin = "Traceback (most recent call last):"
        assert re.findall(r"^\S.*", stack, re.MULTILINE) == [begin, "KeyError", "which led to:", begin, "SystemExit"]
        assert len(re.findall(r'^  File ".*own\.py", line \d+, in app$', stack, re.MULTILINE)) == 2
        assert "secret" not in "".join(service.lines)
        conf.write_text(f"{OWN}loglevel = 'info'\n")
        service.signal(signal.SIGHUP)
        service.wait_for("Booting worker")
        lost = service.wait_for("all plants in memory were lost with worker (\\d+)")
        assert int(lost[1]) == worker  # The old worker, which has the old level, has ended, and not before the signal.
        wait_until(lambda: service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200)
        wait_until(lambda: '"status":200' in service.access[-1])


def test_lines_of_the_error_log_that_wait_are_written_without_another_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    os.mkfifo(tmp_path / "pipe")
    read_end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    received = bytearray()

    def has_all() -> bool:
        with suppress(BlockingIOError):
            received.extend(os.read(read_end, PIPE_BYTES))
        return received.count(b"the application failed") == 100

    with serving("-c=own.py", cwd=tmp_path, command=["sh", "-c", 'exec "$@" 2> "$0"', "pipe", *SERVE]) as service:
        for _ in range(100):
            service.send(method="GET", path="/faulty", headers=[AUTH])
        wait_until(has_all)
    os.close(read_end)


def test_a_log_reader_that_stalls_or_ends_blocks_no_request(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read_end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(read_end, True)
    requests = f"GET /{'x' * 190} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode() * 100
    with serving(command=["sh", "-c", 'exec "$@" > "$0" 2>&1', f"{tmp_path}/pipe", *SERVE]) as service:
        [worker] = children(service.process.pid)
        with service.client() as client:
            for _ in range(30):  # They fill the pipe, and what may wait in the worker.
                client.send(requests)
                assert {client.response().status for _ in range(100)} == {404}
        received = b""
        while b"were dropped" not in received:
            received += os.read(read_end, 65536)
            assert service.send(method="GET", path="/livez", headers=[]).status == 200
        report = json.loads(next(line for line in received.splitlines() if b"were dropped" in line))
        assert report["level"] == "warning"
        os.close(read_end)
        assert service.send(headers=[]).status == 401
        assert children(service.process.pid) == [worker]
        assert service.stop() == 0  # although lines wait


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
    if output.descriptor != target:
        os.close(output.descriptor)


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
    log_file.write_text("earlier\n")
    with output_to(str(log_file)) as output:
        yield output


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
    monkeypatch.setattr("select.select", lambda _reads, writes, *_: ([], writes, []))
    write(pipe[1], LINE * 200)
    assert 0 < os.read(pipe[0], 2 * PIPE_BYTES).count(b"\n") < 200


def test_no_gap_is_left_if_another_program_truncates_the_file(log_file: Path) -> None:
    with log_file.open("wb") as file, output_to(file.fileno()) as output:
        for line in ("first\n", "second\n"):
            os.truncate(log_file, 0)
            write(output, line)
            assert log_file.read_text() == line


def test_a_full_disk_delays_lines_and_tears_none(log_file: Path, file_output: Output) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        for line in ("first\n", "second\n", "third\n"):
            write(file_output, line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log_file.read_text() == "earlier\nfirst\nse"
    file_output.flush()
    assert log_file.read_text() == "earlier\nfirst\nsecond\nthird\n"


@pytest.mark.parametrize("kind", ["file", "socket"])
def test_a_frozen_disk_or_a_socket_delays_nobody(kind: str, log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket cannot be opened again to make it non-blocking, and neither can a pipe of another user."""
    write_now = os.write
    thawed = threading.Event()

    def waiting_for_the_disk(descriptor: int, data: bytes) -> int:
        thawed.wait(PATIENCE_SECONDS)
        return write_now(descriptor, data)

    def threads() -> int:
        return sum(thread.name == logs.__name__ for thread in threading.enumerate())

    monkeypatch.setattr(os, "write", waiting_for_the_disk)
    monkeypatch.setattr(os, "getpid", lambda: 0)
    ours, theirs = socket.socketpair()
    with ours, theirs, log_file.open("w+b") as file:
        with output_to(file.fileno() if kind == "file" else ours.fileno()) as output:
            for line in ("first\n", "second\n"):
                write(output, line)
            assert threads() == 1
            thawed.set()
            wait_until(lambda: threads() == 0)
        received = file.read() if kind == "file" else theirs.recv(100)
    assert received == b"first\nsecond\n"


@pytest.mark.parametrize("is_master", [True, False])
def test_a_process_without_another_thread_writes_to_a_file(
    is_master: bool, log_file: Path, file_output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: object) -> None:
        assert not is_master
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", fail)
    if not is_master:
        monkeypatch.setattr(os, "getpid", lambda: 0)
    write(file_output, LINE)
    assert log_file.read_text() == f"earlier\n{LINE}"


def test_processes_that_share_a_pipe_do_not_mix_lines() -> None:
    program = """
import os
from plants.hosting.logs import Output
output = Output(1)
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
    output = output_of(sys.executable, "-c", program)
    *lines, last = output.splitlines()
    assert last == "parent"
    for name in "abcd":
        assert [len(line) for line in lines if line[0] == name] == [number % 300 + 1 for number in range(2000)]
    assert all(len({*line}) == 1 for line in lines)
