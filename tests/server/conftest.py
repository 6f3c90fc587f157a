"""Event loops that end with their test."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.loop_driver import Driver, Make


@pytest.fixture
def make() -> Iterator[Make]:
    drivers: list[Driver] = []

    def make(*arguments: Any, kind: type[Driver] = Driver, **options: Any) -> Driver:
        drivers.append(kind(*arguments, **options))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.end()


@pytest.fixture
def driver(make: Make) -> Any:
    return make()
