"""The page ``/docs``: its files, and its behavior in Chromium."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest
from cheroot.wsgi import PathInfoDispatcher, Server
from webtest import TestApp as WebTestApp

import plants
from plants import MAX_BODY_BYTES, MemoryStore
from plants.app import PlantApp
from plants.errors import ErrorCode
from plants.hosting.factory import create_hosted_app
from plants.hosting.page import PAGE
from plants.hosting.settings import Settings
from plants.probes import Constant
from plants.tokens import Tokens
from tests.contract import TOKEN
from tests.support.browser import ENTER, TAB, Browser, browsing
from tests.support.hosted import Service, needs, output_of

FILES = {"/docs": "text/html", "/docs/page.css": "text/css", "/docs/page.js": "text/javascript"}

LABELS_OF_FIELDS = """
    const fields = [...document.querySelectorAll('input, textarea')].filter((field) => field.offsetParent);
    return fields.map((field) => field.labels[0].innerText);
"""


@pytest.fixture
def app() -> WebTestApp:
    return WebTestApp(create_hosted_app(Settings.from_environ({"PLANTS_TOKENS": TOKEN})), lint=True)


@pytest.mark.parametrize(("path", "content_type"), FILES.items(), ids=FILES)
def test_the_page_needs_no_token_and_has_a_strict_csp(app: WebTestApp, path: str, content_type: str) -> None:
    response = app.get(path)
    assert response.headers["Content-Type"] == f"{content_type}; charset=utf-8"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_everybody_is_redirected_from_the_root_to_the_page(app: WebTestApp) -> None:
    response = app.get("/?a=1")
    assert (response.status_int, response.headers["Location"]) == (302, "docs")
    assert response.json == {"error": 30200, "message": "Found"}
    assert app.head("/").headers == response.headers


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsing() as window:
        yield window


@pytest.fixture
def browser(window: Browser, service: Service) -> Browser:
    """A browser that shows the page."""
    window.console_errors()
    window.open(f"http://127.0.0.1:{service.port}/docs")
    return window


def fill(browser: Browser, token: str, body: str) -> None:
    browser.run(
        """for (const [id, value] of Object.entries(arguments[0])) {
            const field = document.getElementById(id);
            field.value = value;
            field.dispatchEvent(new Event('input', {bubbles: true}));
        }""",
        {"token": token, "body": body},
    )


def send(browser: Browser, *fields: str) -> str:
    """Fill the form's fields, if they are given, and press Ctrl+Enter."""
    if fields:
        fill(browser, *fields)
    pressed = "new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true})"
    browser.run(f"document.getElementById('token').dispatchEvent({pressed})")
    return response(browser)


def response(browser: Browser) -> str:
    browser.wait_for("!['', 'waiting'].includes(document.getElementById('answer').dataset.outcome ?? '')")
    return text_of(browser, "answer")


def body_of(response: str) -> Any:
    return json.loads(response.partition("\n\n")[2])


def text_of(browser: Browser, part: str) -> str:
    text: str = browser.run("return document.getElementById(arguments[0]).innerText", part)
    return text


@needs("chromedriver")
def test_the_page_sends_the_form_and_shows_each_response(browser: Browser) -> None:
    body = '{"id": 10, "name": "Fern 🌿"}'
    assert body_of(send(browser, f" {TOKEN} ", body)) == {"name": "Fern 🌿"}
    assert body_of(send(browser, TOKEN, body)) == {"error": 40003, "message": "The id 10 is in use."}
    status, request_id, challenge, *lines = send(browser, "wrong", body).split("\n")
    assert re.fullmatch(r"401 Unauthorized \(\d+ ms\)", status)
    assert re.fullmatch(r"X-Request-ID: [\w.-]+", request_id)
    assert challenge == 'WWW-Authenticate: Bearer realm="plants", error="invalid_token"'
    assert lines == ["", "{", '  "error": 40101,', '  "message": "The bearer token is not valid."', "}"]
    assert body_of(send(browser, "", body))["error"] == 40100
    not_sent = send(browser, "a ✓ that no header can have", body)
    assert not_sent == "Not sent: the token has a character that is not ASCII."
    browser.run("window.fetch = () => Promise.reject(new Error('no network'))")
    assert send(browser, TOKEN, body) == "No response: no network"
    browser.run("window.fetch = () => Promise.resolve(new Response('a proxy is <busy>', {status: 502}))")
    assert send(browser, TOKEN, body).endswith("\n\na proxy is <busy>")
    complaints = [complaint.partition("status of ")[2][:3] for complaint in browser.console_errors()]
    assert complaints == ["400", "401", "401"]


@needs("chromedriver")
def test_after_a_200_the_form_has_the_next_id(browser: Browser) -> None:
    for plant_id, next_id, hint in [
        (2**53 + 1, 2**53 + 2, "The id in the body was incremented."),  # It is not rounded.
        (2**63 - 1, 2**63 - 1, "You can also press Ctrl+Enter."),
    ]:
        assert send(browser, TOKEN, f'{{"name": "Fern", "id": {plant_id}}}').startswith("200 ")
        assert browser.run("return document.getElementById('body').value") == f'{{"name": "Fern", "id": {next_id}}}'
        assert text_of(browser, "hint") == hint
        assert f'"id": {plant_id}' in text_of(browser, "curl")  # of the request, not of the form
        assert f'"id": {plant_id}' in copied(browser)
        browser.run("document.getElementById('token').value = 'wrong'")
        assert send(browser).startswith("401 ")
        assert text_of(browser, "hint") == "You can also press Ctrl+Enter."


@needs("chromedriver")
def test_a_reload_has_a_free_id_and_forgets_the_token(browser: Browser) -> None:
    for _ in range(2):
        field = "const {type, value} = document.getElementById('token'); return [type, value]"
        assert browser.run(field) == ["password", ""]
        browser.run("document.getElementById('token').value = arguments[0]", TOKEN)
        assert body_of(send(browser)) == {"name": "Monstera", "tag": "tropical"}
        shown = "return document.documentElement.innerText + document.documentElement.outerHTML"
        assert TOKEN not in browser.run(shown)
        stored = "return [localStorage.length, sessionStorage.length, document.cookie, location.search]"
        assert browser.run(stored) == [0, 0, "", ""]
        browser.open(browser.run("return location.href"))


def copied(browser: Browser) -> str:
    browser.run("document.addEventListener('copy', () => { window.copied = String(document.activeElement.value); })")
    browser.run("document.getElementById('copy').focus()")
    browser.press(ENTER)  # Browsers do not let a script's click write to the clipboard.
    text: str = browser.run("return window.copied")
    return text


@needs("chromedriver", "curl")
def test_the_copied_curl_command_works_as_pasted(browser: Browser) -> None:
    fill(browser, f"{TOKEN} ", '{"id": 31, "name": "Fern\'s"}')
    command = copied(browser)
    assert text_of(browser, "copy") == "Copied"
    assert browser.run("return document.activeElement.id") == "copy"
    assert json.loads(output_of("sh", "-c", f"{command} --silent")) == {"name": "Fern's"}
    fill(browser, "", '{"id": 32, "name": "Fern"}')
    assert text_of(browser, "copy") == "Copy"
    assert json.loads(output_of("sh", "-c", f"{copied(browser)} --silent", TOKEN=TOKEN)) == {"name": "Fern"}


@needs("chromedriver")
def test_the_page_shows_the_operation_headers_and_error_codes(browser: Browser) -> None:
    assert browser.console_errors() == []
    assert text_of(browser, "operation").startswith("POST /plants Create plant")
    assert text_of(browser, "token-hint").startswith("Authorization: Bearer <ACCESS_TOKEN>. ")
    assert "`" not in browser.run("return document.body.innerText")
    cells = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.innerText)"
    assert text_of(browser, "summary").endswith(f" Interface 1.0.0, package {plants.__version__}.")
    assert len(set(browser.run(cells, "caption"))) == browser.run("return document.querySelectorAll('table').length")
    assert browser.run(cells, "#sent th") == [*plants.Plant._fields]
    assert browser.run(cells, "#sent td:nth-child(2)")[:3] == ["int64", "string", "string, optional"]
    assert browser.run(cells, "#received th") == [*plants.Plant._fields[1:]]
    names, statuses = (browser.run(cells, f"#headers {cell}") for cell in ("th", "td:nth-child(2)"))
    limited = {"WWW-Authenticate": "401", "Allow": "405", "Retry-After": "503"}
    assert dict(zip(names, statuses, strict=True)) == dict.fromkeys(names, "all") | limited
    assert browser.run(cells, "#problem th") == ["error", "message"]
    assert json.loads(text_of(browser, "example")) == {"error": 40003, "message": "The id 1 is in use."}
    assert browser.run(cells, "#errors th") == [str(int(code)) for code in ErrorCode]
    assert browser.run(cells, "#errors td:nth-child(2)") == [str(code // 100) for code in ErrorCode]
    assert len([*filter(None, browser.run(cells, "td:nth-child(3)"))]) == len(browser.run(cells, "tbody th"))
    assert all(text_of(browser, part) for part in ("success", "about", "accepted", "rules"))


@needs("chromedriver")
def test_the_labelled_form_works_with_the_keyboard_alone(browser: Browser) -> None:
    assert browser.run(LABELS_OF_FIELDS) == ["Token", "Body"]
    links = browser.run("return document.querySelectorAll('#operations a').length")
    browser.press(TAB * (links + 1) + TOKEN + TAB + TAB + ENTER)
    assert response(browser).startswith("200 ")
    for focused in ("curl", "copy"):
        browser.press(TAB)
        assert browser.run("return document.activeElement.id") == focused
        assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


@contextmanager
def in_thread(resources: dict[str, object]) -> Iterator[str]:
    """Serve the page and these resources below a prefix in this process, and yield the address."""
    app = PlantApp(MemoryStore(), [Tokens([TOKEN])], PAGE | resources, MAX_BODY_BYTES)
    server = Server(("127.0.0.1", 0), PathInfoDispatcher({"/garden/v1": app}))
    server.prepare()
    threading.Thread(target=server.serve).start()
    try:
        yield f"http://127.0.0.1:{server.bind_addr[1]}/garden/v1"
    finally:
        server.stop()


class PlantItem:
    def on_get(self, _req: Any, resp: Any, plant_id: int) -> None:
        resp.media = {"name": f"Fern {plant_id}"}

    on_put = on_get


@needs("chromedriver")
@pytest.mark.parametrize("method", ["get", "put"])
def test_the_page_works_for_another_operation_below_a_prefix(browser: Browser, method: str) -> None:
    described = json.loads(files("plants").joinpath("openapi.json").read_bytes())
    # A description needs no more than this.
    operation: dict[str, Any] = {"operationId": "other", "responses": {"204": {"description": "done"}}}
    if method == "put":
        operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    item = {"parameters": [], "summary": "One plant", method: operation}
    described["paths"] = {"/plants": {"post": described["paths"]["/plants"]["post"]}, "/pots/{plant_id}": item}
    description = Constant(json.dumps(described).encode())
    with in_thread({"/openapi.json": description, "/pots/{plant_id}": PlantItem()}) as url:
        browser.open(f"{url}/docs")
        assert f"curl '{url}/plants'" in text_of(browser, "curl")
        browser.run("document.querySelector('#operations a').click()")
        browser.wait_for(f"document.getElementById('operation')?.innerText.startsWith('{method.upper()} ')")
        assert text_of(browser, "operation") == f"{method.upper()} /pots/{{plant_id}}\n\nPOST /plants"
        assert text_of(browser, "operations") == "POST /plants"
        assert browser.run(LABELS_OF_FIELDS) == ["Token", "Path", *(["Body"] if method == "put" else [])]
        browser.run("document.getElementById('path').value = '/pots/7'")
        browser.run("document.getElementById('token').value = arguments[0]", TOKEN)
        assert body_of(send(browser)) == {"name": "Fern 7"}
        assert f"-X {method.upper()}" in text_of(browser, "curl")
        assert ("--data-raw '{}'" in text_of(browser, "curl")) == (method == "put")
        assert browser.console_errors() == []
