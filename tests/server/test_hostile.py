"""Short forms of tests/audits/hostile.py."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.audits import hostile
from tests.audits.report import Verdict

# The audit has a tight limit for the slowest response. This limit allows for a busy machine.
PATIENT_SECONDS = 20
SHORT: dict[Callable[..., Verdict], dict[str, Any]] = {
    hostile.memory_of_heads: {"clients": 200},
    hostile.memory_of_handshakes: {"clients": 100},
    hostile.unread_responses: {"clients": 6},
    hostile.dear_requests: {"count": 8, "most": 5},
    hostile.single_bytes: {"clients": 100, "dear": 5, "seconds": 0.4, "limit": PATIENT_SECONDS},
    hostile.tiny_records: {"clients": 6, "seconds": 0.4, "limit": PATIENT_SECONDS},
    hostile.large_bodies: {"clients": 4, "seconds": 0.4, "limit": PATIENT_SECONDS},
    hostile.many_bodies: {"clients": 20, "seconds": 0.4, "limit": PATIENT_SECONDS},
    hostile.full_is_fair: {"seconds": 0.4, "limit": PATIENT_SECONDS},
}


@pytest.mark.parametrize("options", dict.fromkeys(hostile.CHECKS.values()), ids=" ".join)
def test_hostile_clients_end_only_their_own_connections(options: tuple[str, ...]) -> None:
    verdict = hostile.run({check: sizes for check, sizes in SHORT.items() if hostile.CHECKS[check] == options})
    assert verdict.holds, verdict.summary
