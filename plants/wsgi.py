"""The hosted service, made from the environment; any WSGI server can run its application, ``app``."""

import os
from typing import Final

from plants.hosting.application import create_service
from plants.hosting.settings import Settings, announce_token, generate_token

_new_token = generate_token(os.environ)  # The packaged configuration has already done this, and logs the token itself.
service: Final = create_service(Settings.from_environ(os.environ))
announce_token(_new_token)
app: Final = service.app
