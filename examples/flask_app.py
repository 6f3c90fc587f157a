"""Mount the plant store under /store of a Flask application (in this folder: gunicorn flask_app:app)."""

from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import plants

app = Flask(__name__)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/store": plants.create_app(tokens=["secret"])})


@app.get("/")
def garden() -> str:
    """Return the host's own page."""
    return "garden"
