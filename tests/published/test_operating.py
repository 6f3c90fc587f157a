"""The examples and tables of docs/operating.md."""

import inspect
import json
import re
from pathlib import Path

import pytest

from plants.hosting import cli, metrics
from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.hosted import CHECKOUT, serving

OPERATING = (CHECKOUT / "docs/operating.md").read_text()


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_documented_log_line_is_one_that_the_service_writes() -> None:
    (example,) = (json.loads(line) for line in OPERATING.splitlines() if line.startswith('{"ts"'))
    with serving() as service:
        for request_id in ("first", example["request_id"]):
            service.send(new_plant(id=17), headers=[AUTH, JSON_TYPE, ("X-Request-ID", request_id)])
        line = service.line_of(example["request_id"])
    assert list(line) == list(example)
    different = {name for name, value in line.items() if value != example[name]}
    assert different <= {"ts", "duration"}


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_hook_that_calls_the_packaged_one_runs_beside_it(tmp_path: Path) -> None:
    (configuration,) = re.findall(r"```python\n(.*?on_starting.*?)```", OPERATING, re.DOTALL)
    (tmp_path / "own.py").write_text(configuration)
    with serving(f"--config={tmp_path}/own.py") as service:
        service.wait_for("the garden opens")
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200


def test_the_table_of_metrics_agrees_with_the_code() -> None:
    table = OPERATING.partition("| name |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    # Prometheus appends _total to the names of counters.
    documented = {name.removesuffix("_total") for name in named}
    assert documented == set(re.findall(r'"((?:plants|http_server)_\w+)"', inspect.getsource(metrics)))


def test_the_documented_check_timeout_agrees_with_the_code() -> None:
    assert f"*no response within {cli.CHECK_SECONDS} seconds*" in OPERATING
