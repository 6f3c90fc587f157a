"""Two plant stores side by side in one process, with stores and tokens of their own."""

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
