"""Mount the plant store under /store of a Pyramid application (in this folder: gunicorn pyramid_app:app)."""

from pyramid.config import Configurator
from pyramid.request import Request
from pyramid.response import Response
from pyramid.wsgi import wsgiapp2

import plants


def garden(_request: Request) -> Response:
    """Return the host's own page."""
    return Response("garden")


config = Configurator()
config.add_route("garden", "/")
config.add_view(garden, route_name="garden")
config.add_route("store", "/store/*subpath")
config.add_view(wsgiapp2(plants.create_app(tokens=["secret"])), route_name="store")
app = config.make_wsgi_app()
