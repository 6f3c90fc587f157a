"""Every store behaves like a plain dictionary, for any calls in any order."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from plants.stores import Plant, PlantIdInUse, open_store
from plants.stores.group_commit import GroupCommitStore
from tests.stores.test_every_store import submit
from tests.support.examples import examples
from tests.support.postgres_server import PostgresServer

# For each line of stdin, this program forks a client. The client adds batches of plants and prints the results of each
# batch. At some time, the test kills the client.
CLIENTS = r"""
import contextlib, json, os, signal, sys
import plants.stores.sqlite
from plants.stores import Plant, open_store
from tests.stores.test_every_store import submit
from tests.stores.test_machine import outcome

with contextlib.suppress(ImportError):  # psycopg may not be installed
    import plants.stores.postgres

for line in sys.stdin:
    url, batches = json.loads(line)
    client = os.fork()
    if not client:
        print(os.getpid(), flush=True)
        store = open_store(url)
        for batch in batches:
            futures = [submit(store, Plant(*plant)) for plant in batch]
            # One write, because the test may kill the client between two.
            os.write(1, json.dumps([outcome(future.result) for future in futures]).encode() + b"\n")
        while True:
            signal.pause()
    os.waitpid(client, 0)
    print("dead", flush=True)
"""

IDS = [-(2**63), *range(-1, 18), 2**63 - 1]


def outcome(result: Callable[[], None]) -> object:
    """Return the id in use, or "added"."""
    try:
        result()
    except PlantIdInUse as error:
        return error.plant_id
    return "added"


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
plants = st.builds(Plant, st.sampled_from(IDS), texts, st.none() | texts)
# Choose few ids for a batch, so that some of its plants have the same one.
batches = st.lists(st.sampled_from(IDS), min_size=1, max_size=3).flatmap(
    lambda ids: st.lists(st.builds(Plant, st.sampled_from(ids), texts, st.none() | texts), max_size=10)
)


class StoreMachine(RuleBasedStateMachine):
    """One store, or several stores on one URL, as in several processes."""

    number_of_stores = 1

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.model: dict[int, Plant] = {}
        self.numbers = itertools.cycle(range(self.number_of_stores))
        self.stores = [open_store(url) for _ in range(self.number_of_stores)]

    def teardown(self) -> None:
        for store in self.stores:
            store.check()
            store.close()

    def expected(self, plant: Plant) -> object:
        """Add a plant to the model, and return the outcome that a store must have."""
        return "added" if self.model.setdefault(plant.id, plant) is plant else plant.id

    @rule(plant=plants)
    def add(self, plant: Plant) -> None:
        store = self.stores[next(self.numbers)]
        assert outcome(lambda: store.add(plant)) == self.expected(plant)

    @rule(plant_id=st.sampled_from(IDS))
    def get(self, plant_id: int) -> None:
        assert self.stores[next(self.numbers)].get(plant_id) == self.model.get(plant_id)

    @rule()
    def check(self) -> None:
        self.stores[next(self.numbers)].check()

    @rule(batch=batches, order=st.randoms(use_true_random=False))
    def add_a_batch(self, batch: list[Plant], order: Random) -> None:
        """Submit plants, then ask for their results in any order."""
        store = self.stores[next(self.numbers)]
        if isinstance(store, GroupCommitStore):
            submitted = [(submit(store, plant), self.expected(plant)) for plant in batch]
            order.shuffle(submitted)
            assert [outcome(future.result) for future, _ in submitted] == [expected for _, expected in submitted]

    def settle(self, unresolved: list[Plant]) -> None:
        """Find out which plants of a killed client are stored, and add the stored plants to the model.

        ``unresolved`` has the plants for which the client printed no result.
        """
        for plant_id in {plant.id for plant in unresolved} - set(self.model):
            # First add a plant with this id. If the server is still committing a statement of the killed client, an add
            # waits for the commit, unlike a read.
            settled = Plant(plant_id, "settled")
            with contextlib.suppress(PlantIdInUse):
                self.stores[0].add(settled)
                unresolved.append(settled)
            stored = self.stores[0].get(plant_id)
            assert stored in unresolved
            self.model[plant_id] = stored

    @invariant()
    def every_store_has_the_plants_of_the_model(self) -> None:
        for store in self.stores:
            assert [store.get(plant_id) for plant_id in IDS] == [self.model.get(plant_id) for plant_id in IDS]


class PersistentMachine(StoreMachine):
    """A store that outlives its processes."""

    number_of_stores = 2

    def __init__(self, url: str, clients: "subprocess.Popen[str]") -> None:
        super().__init__(url)
        self.clients = clients

    @rule()
    def close_and_open_again(self) -> None:
        number = next(self.numbers)
        self.stores[number].close()
        self.stores[number] = open_store(self.url)

    @rule(batches=st.lists(st.lists(plants, max_size=4), max_size=5), reports=st.integers(0, 5))
    def kill_a_client(self, batches: list[list[Plant]], reports: int) -> None:
        """Wait until a client has reported ``reports`` batches, or all batches if there are fewer. Then kill it."""
        stdin, stdout = self.clients.stdin, self.clients.stdout
        assert stdin
        assert stdout
        stdin.write(json.dumps([self.url, batches]) + "\n")
        stdin.flush()
        pid = int(stdout.readline())
        lines = [stdout.readline() for _ in batches[:reports]]
        os.kill(pid, signal.SIGKILL)
        lines += iter(stdout.readline, "dead\n")
        for batch, line in zip(batches, lines, strict=False):
            assert json.loads(line) == [self.expected(plant) for plant in batch]
        self.settle([plant for batch in batches[len(lines) :] for plant in batch])


class PostgresMachine(PersistentMachine):
    def __init__(self, server: PostgresServer, clients: "subprocess.Popen[str]") -> None:
        server.execute("DROP TABLE IF EXISTS plants")
        super().__init__(server.url, clients)
        self.server = server

    @rule()
    def lose_all_connections(self) -> None:
        self.server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'plants'"
        )

    def teardown(self) -> None:
        self.lose_all_connections()
        super().teardown()


@pytest.fixture(scope="module")
def clients() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as clients:
        yield clients


def run(machine: Any, few: int = 5) -> None:
    # Do not search for the shortest example, because the many commits would take minutes.
    phases = set(Phase) - {Phase.shrink, Phase.explain}
    run_state_machine_as_test(machine, settings=settings(examples(few, steps=15), phases=phases))


def test_memory_is_like_a_dictionary() -> None:
    run(lambda: StoreMachine("memory:"))


def test_sqlite_is_like_a_dictionary(tmp_path: Path, clients: "subprocess.Popen[str]") -> None:
    numbers = itertools.count()
    run(lambda: PersistentMachine(f"sqlite:///{tmp_path}/{next(numbers)}.db", clients))


def test_postgresql_is_like_a_dictionary(
    server: PostgresServer, clients: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    # With several committers, the order of the plants of a batch is not defined.
    monkeypatch.setattr("plants.stores.postgres.PostgresStore.committers", 1)
    run(lambda: PostgresMachine(server, clients), few=4)
