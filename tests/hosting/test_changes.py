"""A short form of the audit of changes: what an operator changes under load, no client notices."""

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


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_request_is_lost(change: Callable[[str, int, int], Verdict]) -> None:
    verdict = change("sqlite", 2, 400)
    assert verdict.holds, verdict.seen
