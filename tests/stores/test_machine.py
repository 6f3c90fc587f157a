"""Every store against a plain dictionary: any calls in any order, and nothing but what the dictionary says."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from plants.stores import Plant, PlantIdInUse, PlantStore, open_store
from tests.support.examples import examples
from tests.support.postgres_server import PostgresServer

# For each line it forks a process that says what its batches are told, and that the test kills.
CLIENTS = """
import json, os, signal, sys
from functools import partial
import plants.stores.postgres, plants.stores.sqlite
from plants.stores import Plant, PlantIdInUse, open_store

def add(store, plant):
    try:
        store.add(plant)
    except PlantIdInUse:
        return plant.id
    return "added"

for line in sys.stdin:
    url, batches = json.loads(line)
    client = os.fork()
    if not client:
        print(os.getpid(), flush=True)
        store = open_store(url)
        for batch in batches:
            print(json.dumps(store.together([partial(add, store, Plant(*plant)) for plant in batch])), flush=True)
        while True:
            signal.pause()
    os.waitpid(client, 0)
    print("dead", flush=True)
"""

IDS = [-(2**63), *range(-1, 18), 2**63 - 1]


class Model(PlantStore):
    """What a store is to be like."""

    def __init__(self) -> None:
        self.plants: dict[int, Plant] = {}

    def add(self, plant: Plant) -> None:
        if self.plants.setdefault(plant.id, plant) is not plant:
            raise PlantIdInUse(plant.id)

    def get(self, plant_id: int) -> Plant | None:
        return self.plants.get(plant_id)

    def check(self) -> None:
        """Return, as a dictionary takes every plant."""

    def close(self) -> None:
        self.plants.clear()


class Add(NamedTuple):
    plant: Plant
    insists: bool = False  # an id in use leaves the call as an exception


class Get(NamedTuple):
    plant_id: int


class Check(NamedTuple):
    pass


class Answer(NamedTuple):
    """Does not use the store."""

    text: str


class Several(NamedTuple):
    """One call that does one thing after the other."""

    uses: "list[Use]"


class Together(NamedTuple):
    uses: "list[Use]"


Use = Add | Get | Check | Answer | Several | Together


def use(store: PlantStore, what: Use) -> object:  # noqa: PLR0911  # one a kind
    """Use a store, or the model of one, and give what it said."""
    match what:
        case Add(plant, insists):
            try:
                store.add(plant)
            except PlantIdInUse as error:
                if insists:
                    raise
                return error.plant_id
            return "added"
        case Get(plant_id):
            return store.get(plant_id)
        case Check():
            return store.check()
        case Answer(text):
            return text
        case Several(uses):
            return [use(store, each) for each in uses]
        case together:
            return store.together([partial(use, store, each) for each in together.uses])


def plants_in(what: Use) -> Iterator[Plant]:
    """Give the plants that a use may have added."""
    match what:
        case Add(plant):
            yield plant
        case Several(uses) | Together(uses):
            yield from itertools.chain.from_iterable(map(plants_in, uses))


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
plants = st.builds(Plant, st.sampled_from(IDS), texts, st.none() | texts)


def single_uses(ids: list[int]) -> st.SearchStrategy[Use]:
    return st.one_of(
        st.builds(
            Add,
            st.builds(Plant, st.sampled_from(ids), texts, st.none() | texts),
            st.sampled_from([False] * 15 + [True]),
        ),
        st.builds(Get, st.sampled_from(ids)),
        st.builds(Check) | st.builds(Answer, texts),
    )


def batches(ids: list[int]) -> st.SearchStrategy[Use]:
    def calls(uses: st.SearchStrategy[Use]) -> st.SearchStrategy[Use]:
        several = st.lists(uses, max_size=4)
        return st.builds(Several, several) | st.builds(Together, several)

    return st.builds(Together, st.lists(st.recursive(single_uses(ids), calls, max_leaves=6), max_size=10))


# The calls of a batch have to do with each other: they are about few ids.
some_batches = st.lists(st.sampled_from(IDS), min_size=1, max_size=3).flatmap(batches)


class StoreMachine(RuleBasedStateMachine):
    """One store, or several of one URL, as several processes have it."""

    number_of_stores = 1

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.model = Model()
        self.numbers = itertools.cycle(range(self.number_of_stores))
        self.stores = [open_store(url) for _ in range(self.number_of_stores)]

    def teardown(self) -> None:
        for store in [self.model, *self.stores]:
            assert use(store, Check()) is None
            store.close()

    @rule(what=single_uses(IDS) | some_batches)
    def use(self, what: Use) -> None:
        """Use the store; where an exception has left a batch, nobody knows what of its plants is kept."""
        store = self.stores[next(self.numbers)]
        before = dict(self.model.plants)
        try:
            expected = use(self.model, what)
        except PlantIdInUse:
            with pytest.raises(PlantIdInUse):
                use(store, what)
            self.model.plants = before
            self.settle(list(plants_in(what)))
        else:
            assert self.agree(use(store, what), expected)

    def agree(self, told: object, expected: object) -> bool:
        """Say whether a store told the truth: a call of a batch that is run again reads what those behind it added."""
        if isinstance(expected, list):
            return isinstance(told, list) and len(told) == len(expected) and all(map(self.agree, told, expected))
        return told == (self.model.get(told.id) if expected is None and isinstance(told, Plant) else expected)

    def settle(self, unsure: list[Plant]) -> None:
        """Use the ids of plants that may be kept or not; each that is kept is as it was given."""
        # By adding, not by reading: a server may still be about to keep what a client sent before it was killed.
        for plant_id in {plant.id for plant in unsure} - set(self.model.plants):
            plant: Plant | None = Plant(plant_id, "settled")
            with contextlib.suppress(PlantIdInUse):
                self.stores[0].add(cast("Plant", plant))
                unsure.append(cast("Plant", plant))
            plant = self.stores[0].get(plant_id)
            assert plant in unsure
            self.model.add(plant)

    @invariant()
    def every_store_has_what_the_model_has(self) -> None:
        for store in self.stores:
            assert [store.get(plant_id) for plant_id in IDS] == [self.model.get(plant_id) for plant_id in IDS]


class LastingMachine(StoreMachine):
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

    @rule(batches=st.lists(st.lists(plants, max_size=4), max_size=5), answers=st.integers(0, 5))
    def be_killed(self, batches: list[list[Plant]], answers: int) -> None:
        """Kill a process that adds, once it has been told of so many batches, or of all."""
        stdin, stdout = self.clients.stdin, self.clients.stdout
        assert stdin
        assert stdout
        stdin.write(json.dumps([self.url, batches]) + "\n")
        stdin.flush()
        pid = int(stdout.readline())
        lines = [stdout.readline() for _ in batches[:answers]]
        os.kill(pid, signal.SIGKILL)
        lines += iter(stdout.readline, "dead\n")
        for batch, line in zip(batches, lines, strict=False):
            assert json.loads(line) == [use(self.model, Add(plant)) for plant in batch]
        self.settle([plant for batch in batches[len(lines) :] for plant in batch])


class PostgresMachine(LastingMachine):
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


def run(machine: Any, few: int = 10) -> None:
    # Commits make the search for the shortest example take minutes.
    phases = set(Phase) - {Phase.shrink, Phase.explain}
    run_state_machine_as_test(machine, settings=settings(examples(few, steps=15), phases=phases))


def test_memory_is_like_a_dictionary() -> None:
    run(lambda: StoreMachine("memory:"))


def test_sqlite_is_like_a_dictionary(tmp_path: Path, clients: "subprocess.Popen[str]") -> None:
    numbers = itertools.count()
    run(lambda: LastingMachine(f"sqlite:///{tmp_path}/{next(numbers)}.db", clients))


def test_postgresql_is_like_a_dictionary(server: PostgresServer, clients: "subprocess.Popen[str]") -> None:
    run(lambda: PostgresMachine(server, clients), few=4)
