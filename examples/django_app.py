"""Mount the plant store under /store of a Django project (in this folder: gunicorn django_app:app)."""

from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import plants


def garden(_request: HttpRequest) -> HttpResponse:
    """Return the host's own page."""
    return HttpResponse("garden")


settings.configure(ROOT_URLCONF=(path("", garden),), ALLOWED_HOSTS=["*"], SECRET_KEY="secret")
django = get_wsgi_application()
store = plants.create_app(tokens=["secret"])


def app(environ: dict[str, Any], start_response: Any) -> Any:
    """Pass a request below /store to the plant store, and any other to Django."""
    if environ["PATH_INFO"].startswith("/store/"):
        environ["SCRIPT_NAME"] += "/store"
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/store")
        return store(environ, start_response)
    return django(environ, start_response)
