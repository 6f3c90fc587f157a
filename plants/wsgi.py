"""The hosted service's application, ``app``, built from the environment."""

from plants.app import create_app
from plants.hosting.metrics import WithMetrics
from plants.hosting.probes import Hosted
from plants.hosting.service import announce_new_token, settings, store

announce_new_token()
_interface = create_app(store, tokens=settings.tokens, max_body_bytes=settings.max_body_bytes)
app = WithMetrics(Hosted(_interface, store)) if settings.metrics_bind else Hosted(_interface, store)
