"""A WebTest client for in-process tests. Needs the extra ``testing``."""

from typing import Any

from webtest import TestApp

from plants.testing import Deployment, FaultyStore


class Client(TestApp):  # type: ignore[misc]  # WebTest has no types
    """A WebTest client of a new deployment. It sends that deployment's first token, even after ``rotate_token()``."""

    def __init__(self) -> None:
        self.deployment = Deployment()
        self.token = self.deployment.token
        super().__init__(self.deployment)
        self.authorization = ("Bearer", self.token)

    def __setattr__(self, name: str, value: Any) -> None:
        """Reject the attributes of the store, because setting them here would have no effect."""
        if name in {"fault", "delay"}:
            raise AttributeError(f"a Client has no {name}; its store has fault, delay and fail()")
        super().__setattr__(name, value)

    @property
    def store(self) -> FaultyStore:
        """The store of the deployment."""
        return self.deployment.store
