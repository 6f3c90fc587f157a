"""The resources of a service beside its interface: probes and the interface description. They show no store data."""

from importlib.resources import files

import falcon

from plants.app import begin
from plants.errors import ErrorCode, http_error
from plants.stores import PlantStore


class Readiness:
    """``/readyz``: whether the service can store plants now."""

    public = True

    def __init__(self, store: PlantStore) -> None:
        self._store = store

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Respond with 200, or with 503 if an ``add`` would fail now or the server is stopping."""
        if req.env.get("server.stopping"):
            raise http_error(ErrorCode.UNAVAILABLE, "The service is stopping.")
        resp.text = '{"status": "ready"}\n'
        begin(self._store, None, req.env)

    on_head = on_get
    on_options = on_get  # HAProxy checks with OPTIONS by default, which Falcon would answer with 200 in any case.


class Constant:
    """A resource whose response is always the same."""

    public = True
    blocks = False

    def __init__(self, content: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self._content = content
        self._headers = headers or {}
        self._status = falcon.code_to_http_status(status)

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Respond with the content."""
        resp.status = self._status
        resp.data = self._content
        resp.set_headers(self._headers)

    on_head = on_get


def public_resources(store: PlantStore) -> dict[str, object]:
    """Return the public resources that every deployment has, keyed by path."""
    return {
        # It does not check the store, because a restart of the process would not end an outage of the store.
        "/livez": Constant(b'{"status": "live"}\n'),
        "/readyz": Readiness(store),
        "/openapi.json": Constant(files("plants").joinpath("openapi.json").read_bytes()),
    }
