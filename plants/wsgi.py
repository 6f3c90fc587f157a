"""The hosted service, made from the environment; any WSGI server can run its application."""

import os
from typing import Final

from plants.hosting.factory import create_hosted_app
from plants.hosting.settings import settings_with_token

settings: Final = settings_with_token(os.environ)
#: the name that many servers take as an option, and the one that mod_wsgi and uWSGI look for
app: Final = create_hosted_app(settings)
application: Final = app
