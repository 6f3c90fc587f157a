"""Short forms of most checks in tests/audits/hostile.py."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.audits import hostile
from tests.audits.clients import MIB, Bystander, Target, running_service
from tests.audits.report import Verdict

# The audit has a tight limit for the slowest response. This limit allows for a busy machine.
PATIENT_SECONDS = 20
LARGEST_BODY = 65536

CHECKS: dict[str, Callable[[Target], Verdict]] = {
    "half-heads": partial(hostile.half_heads, clients=200),
    "resets": partial(hostile.resets_beside_creates, seconds=0.5, limit=PATIENT_SECONDS),
    "tiny-chunks": partial(hostile.tiny_chunks, clients=200, limit=PATIENT_SECONDS),
    "large-heads": partial(hostile.large_heads, clients=20, limit=PATIENT_SECONDS),
    "endless-heads": partial(hostile.endless_heads, clients=20, limit=PATIENT_SECONDS),
    "stalled-bodies": partial(hostile.stalled_bodies, size=LARGEST_BODY, limit=PATIENT_SECONDS),
    "byte-after-upload": partial(hostile.byte_after_upload, uploads=800, size=LARGEST_BODY, slack=8 * MIB),
    "aborted-uploads": partial(hostile.aborted_uploads, uploads=320, size=LARGEST_BODY, slack=8 * MIB),
    "connect": hostile.connect,
    "malformed-trailers": hostile.malformed_trailers,
    "large-framing": hostile.large_framing,
    "stalled": partial(hostile.stalled, clients=100, seconds=1, limit=PATIENT_SECONDS),
}
# These checks start a service with special settings or limits, and do not depend on the store.
CONNECTION_CHECKS: dict[str, Callable[[str, int], Verdict]] = {
    "few-descriptors": partial(hostile.few_descriptors, files=100, clients=300, seconds=1),
    "no-descriptor-left": hostile.no_descriptor_left,
    "stalled-handshakes": partial(hostile.stalled_handshakes, clients=60, allowed=10, timeout=2),
    "key-updates": partial(hostile.key_updates, seconds=0.5, limit=PATIENT_SECONDS),
    "renegotiations": partial(hostile.renegotiations, seconds=0.5, limit=PATIENT_SECONDS),
    "silent-clients": partial(hostile.silent_clients, clients=100, seconds=1),
    "clients-that-send-a-byte": partial(hostile.silent_clients, clients=100, seconds=1, first=b"P"),
}
DEPLOYMENT_CHECKS: dict[str, Callable[[str, int], Verdict]] = {
    "large-creates": partial(hostile.large_creates, clients=12, rounds=1),
}
STORES = [pytest.param(("memory", 1), id="memory"), pytest.param(("sqlite", 2), id="sqlite-two-workers")]


@pytest.fixture(scope="module", params=STORES)
def service(request: pytest.FixtureRequest) -> Iterator[Target]:
    store, workers = request.param
    environ = {"PLANTS_REQUEST_TIMEOUT": "2", "PLANTS_MAX_BODY_BYTES": str(LARGEST_BODY)}
    with running_service(store, workers, environ=environ) as service:
        yield service


@pytest.fixture(autouse=True)
def slow_bystanders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the good client beside the hostile ones pause longer between its requests."""
    monkeypatch.setattr(Bystander, "pause", 0.02)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_hostile_clients_end_only_their_own_connections(service: Target, check: Callable[[Target], Verdict]) -> None:
    verdict = hostile.unharmed(service, check)
    assert verdict.holds, verdict.summary


@pytest.mark.parametrize("check", CONNECTION_CHECKS.values(), ids=CONNECTION_CHECKS)
def test_a_specially_configured_service_survives_hostile_clients(check: Callable[[str, int], Verdict]) -> None:
    verdict = check("sqlite", 2)
    assert verdict.holds, verdict.summary


@pytest.mark.parametrize("check", DEPLOYMENT_CHECKS.values(), ids=DEPLOYMENT_CHECKS)
@pytest.mark.parametrize("deployment", STORES)
def test_each_deployment_survives_hostile_creates(
    deployment: tuple[str, int], check: Callable[[str, int], Verdict]
) -> None:
    verdict = check(*deployment)
    assert verdict.holds, verdict.summary
