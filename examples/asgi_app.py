"""Mount the plant store under /store of an ASGI application (in this folder: uvicorn asgi_app:app)."""

from typing import Any

from a2wsgi import WSGIMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import plants


async def garden(_request: Request) -> PlainTextResponse:
    """Return the host's own page."""
    return PlainTextResponse("garden")


plant_store = plants.create_app(tokens=["secret"])


def store(environ: dict[str, Any], start_response: Any) -> Any:
    """Call the plant store with an environ key that a2wsgi does not set."""
    # The key declares that wsgi.input ends where the body ends, even if the body is chunked.
    return plant_store(environ | {"wsgi.input_terminated": True}, start_response)


app = Starlette(routes=[Route("/", garden), Mount("/store", WSGIMiddleware(store))])
