"""Run two independent plant stores in one process (in this folder: gunicorn two_apps:app)."""

from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import plants

app = DispatcherMiddleware(
    NotFound(),
    {
        "/north": plants.create_app(tokens=["north-secret"]),
        "/south": plants.create_app(tokens=["south-secret"]),
    },
)
