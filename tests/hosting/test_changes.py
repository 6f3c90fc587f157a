"""Clients notice nothing while an operator changes a service under load."""

from collections.abc import Callable

import pytest

from tests.audits import changes
from tests.audits.report import Verdict

CHANGES = [
    changes.token_rotation,
    changes.hup,
    changes.usr2,
    changes.term,
    changes.term_of_one_of_two,
    changes.workers_more_and_fewer,
]


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the audit's time limits, because the machine may be busy."""
    monkeypatch.setattr(changes, "RESPONSE_SECONDS", 20.0)
    monkeypatch.setattr(changes, "CLOSE_SECONDS", 3.0)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_request_is_lost_during_a_change(change: Callable[[str, int, int], Verdict]) -> None:
    verdict = change("sqlite", 2, 400)
    assert verdict.holds, verdict.summary
