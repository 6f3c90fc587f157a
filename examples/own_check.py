"""Check tokens in the host, here with an expiry time (in this folder: gunicorn own_check:app)."""

import time

import plants


class Leases:
    """Tokens and the times at which they expire."""

    def __init__(self) -> None:
        self.expiry = {"secret": time.time() + 3600}

    def accepts(self, token: str) -> bool:
        """Return whether the token is valid now."""
        return self.expiry.get(token, 0) > time.time()


leases = Leases()
app = plants.create_app(tokens=leases)
