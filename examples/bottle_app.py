"""The plant store under /store of a Bottle application: gunicorn -c /dev/null examples.bottle_app:app."""

from bottle import Bottle

import plants

app = Bottle()
app.mount("/store/", plants.create_app(tokens=["secret"]))


@app.get("/")
def garden() -> str:
    """Answer with the host's own page."""
    return "garden"
