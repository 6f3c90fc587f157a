"""A Gunicorn worker for any WSGI application with small responses. It knows HTTP, and nothing of plants."""

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec


def implementation() -> str:
    """Return ``compiled`` if the event loop of this installation was compiled to machine code, else ``interpreted``."""
    spec = find_spec(f"{__name__}.loop")
    return "compiled" if spec and isinstance(spec.loader, ExtensionFileLoader) else "interpreted"
