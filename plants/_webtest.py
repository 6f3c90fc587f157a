"""A WebTest client of the service, for tests in the process. Needs the extra ``testing``."""

from typing import Any

from webtest import TestApp

from plants.testing import Deployment


class Client(TestApp):  # type: ignore[misc]  # WebTest has no types
    """A WebTest client of a new deployment, in the process; it sends ``token``, which was valid at first."""

    def __init__(self) -> None:
        self.deployment = Deployment()
        self.store = self.deployment.store
        self.token = self.deployment.token
        super().__init__(self.deployment)
        self.authorization = ("Bearer", self.token)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but none of the store's: on the client they would do nothing, silently."""
        if name in {"fault", "delay"}:
            raise AttributeError(f"a client has no {name}; its store has")
        super().__setattr__(name, value)
