"""OpenTelemetry traces, set up as in docs/operating.md."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import pytest

from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.hosted import CHECKOUT, serving

OPERATING = (CHECKOUT / "docs/operating.md").read_text()
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector(BaseHTTPRequestHandler):
    exports: "Queue[bytes]" = Queue()

    def do_POST(self) -> None:  # http.server calls the method of this name.
        self.exports.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of an OTLP collector."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.network
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_example_exports_spans(tmp_path: Path, url: str) -> None:
    (packages,) = re.findall(r"^pip install (opentelemetry.*)$", OPERATING, re.MULTILINE)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path / "packages")]
    subprocess.run([*install, *packages.split()], check=True, timeout=300)
    (tmp_path / "conf.py").write_text('wsgi_app = "traced:app"\n')
    with serving(
        "--config=conf.py",
        cwd=tmp_path,
        PYTHONPATH=f"{CHECKOUT}/examples:{tmp_path / 'packages'}:{CHECKOUT}",
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
        OTEL_BSP_SCHEDULE_DELAY="100",
    ) as service:
        headers = [AUTH, JSON_TYPE, ("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01")]
        response = service.send(new_plant(), headers=headers)
        assert (response.plant, response.headers["x-request-id"]) == ({"name": "Fern"}, TRACE_ID)
        received = iter(lambda: Collector.exports.get(timeout=60), b"")
        assert any(bytes.fromhex(TRACE_ID) in spans for spans in received)
