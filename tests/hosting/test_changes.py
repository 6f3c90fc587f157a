"""Clients notice nothing while an operator changes a service under load."""

from collections.abc import Callable

import pytest

from tests.audits import changes
from tests.audits.deployment import Deployment


@pytest.fixture(autouse=True)
def short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load less, and raise the audit's time limits, because the machine may be busy."""
    monkeypatch.setattr(changes, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(changes, "RESPONSE_SECONDS", 20.0)
    monkeypatch.setattr(changes, "CLOSE_SECONDS", 3.0)


@pytest.mark.parametrize("change", changes.CHANGES, ids=lambda change: change.__name__)
def test_no_request_is_lost_during_a_change(change: Callable[[Deployment], None]) -> None:
    verdict = changes.repeat(change, 1)
    assert verdict.holds, verdict.summary
