"""Mount the plant store under /store of a Bottle application (in this folder: gunicorn bottle_app:app)."""

from bottle import Bottle

import plants

app = Bottle()
app.mount("/store/", plants.create_app(tokens=["secret"]))


@app.get("/")
def garden() -> str:
    """Return the host's own page."""
    return "garden"
