"""Tokens that the host itself checks, here with an end: gunicorn -c /dev/null examples.own_check:app."""

import time

import plants


class Leases:
    """Tokens that are valid until a time."""

    def __init__(self) -> None:
        self.ends = {"secret": time.time() + 3600}

    def accepts(self, token: str) -> bool:
        """Tell whether the token is valid now."""
        return self.ends.get(token, 0) > time.time()


leases = Leases()
app = plants.create_app(tokens=leases)
