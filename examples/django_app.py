"""The plant store under /store of a Django project: gunicorn -c /dev/null examples.django_app:app."""

from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import plants


def garden(_request: HttpRequest) -> HttpResponse:
    """Answer with the host's own page."""
    return HttpResponse("garden")


settings.configure(ROOT_URLCONF=(path("", garden),), ALLOWED_HOSTS=["*"], SECRET_KEY="secret")
django = get_wsgi_application()
store = plants.create_app(tokens=["secret"])


def app(environ: dict[str, Any], start_response: Any) -> Any:
    """Give the store what is below /store, and Django the rest."""
    if environ["PATH_INFO"].startswith("/store/"):
        environ["SCRIPT_NAME"] += "/store"
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/store")
        return store(environ, start_response)
    return django(environ, start_response)
