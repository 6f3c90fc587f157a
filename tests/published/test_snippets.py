"""Every code block of the documents has a test, or is listed here with the reason why it has none."""

import re
from pathlib import Path

from tests.contract import TOKEN, Send
from tests.support.hosted import CHECKOUT

SOURCES = "".join(file.read_text() for file in (CHECKOUT / "tests").rglob("test_*.py"))
TEST_NAMES = set(re.findall(r"^ *def (test_\w+)\(", SOURCES, re.MULTILINE))
DOCUMENTS = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md")])
# For each document, the tests of its blocks in their order. A string with spaces is a reason instead of a test.
TESTS = {
    "README.md": [
        "test_a_clean_copy_needs_only_the_readmes_commands",
        "test_the_readme_shows_the_responses_to_its_requests",
        "test_the_test_command_is_the_one_that_ci_runs",
        "test_the_readme_shows_the_responses_to_its_requests",
        "test_the_readme_shows_the_responses_to_its_requests",
        "test_the_first_snippet_creates_an_application",
        "test_the_second_snippet_is_a_test_that_passes",
    ],
    "CHANGELOG.md": [],
    "SECURITY.md": [],
    "contributing.md": ["test_the_commands_for_contributors_select_tests"] * 2,
    "decisions.md": [],
    "embedding.md": [
        "test_the_documented_embedded_application_responds",
        "test_a_store_of_another_project_passes_the_suite",
        "test_the_documented_embedded_application_responds",
    ],
    "hosting.md": [
        "test_the_service_starts_as_documented",
        "test_the_commands_for_docker_fit_the_image",
        "test_the_service_serves_tls_as_documented",
        "test_the_service_works_behind_a_proxy_with_a_prefix",
        "test_the_service_works_behind_a_proxy_with_a_prefix",
    ],
    "interface.md": ["test_the_documented_request_gets_the_documented_responses"] * 2,
    "operating.md": [
        "test_the_diagnostic_commands_work_as_documented",
        "test_the_documented_log_line_is_one_that_the_service_writes",
        "test_a_request_id_is_found_in_the_logs",
        "test_the_metrics_are_served_where_they_are_configured",
        "test_the_example_exports_spans",
        "test_a_hook_that_calls_the_packaged_one_runs_beside_it",
        "test_the_systemd_installation_prepares_the_unit",
        "test_a_token_is_rotated_without_a_rejected_request",
        "test_a_hup_loads_a_changed_configuration",
        "test_usr2_replaces_the_master",
        "test_the_systemd_installation_prepares_the_unit",
        "test_nginx_drains_a_service_before_it_stops",
    ],
    "scaling.md": [
        "test_the_documented_table_for_citus_is_used",
        "test_every_benchmark_accepts_its_documented_options",
    ],
    "stores.md": [
        "test_the_read_command_prints_every_plant",
        "test_plants_move_to_postgresql_and_a_second_move_fails",
        *["test_the_second_backup_under_load_is_restored"] * 2,
        *["test_a_dump_restores_a_dropped_table_for_a_running_service"] * 2,
        "test_plants_move_to_postgresql_and_a_second_move_fails",
    ],
    "testing.md": [
        "test_the_extra_is_all_that_another_project_installs",
        "test_the_documented_test_passes",
        "test_the_documented_command_serves",
        "test_the_documented_shell_script_works",
    ],
    "tutorial.md": [
        "test_the_tutorial_installs_all_that_it_uses",
        *["test_the_tutorial_works_from_the_first_to_the_last_block"] * 14,
    ],
}


def blocks(document: Path) -> list[str]:
    return re.findall(r"^```\w+\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)


def test_every_block_has_a_test_or_a_reason() -> None:
    assert {document.name: len(blocks(document)) for document in DOCUMENTS} == {
        name: len(tests) for name, tests in TESTS.items()
    }


def test_every_test_of_a_block_exists() -> None:
    named = {test for tests in TESTS.values() for test in tests if " " not in test}
    assert named - TEST_NAMES == set()


def test_the_documented_request_gets_the_documented_responses(send: Send) -> None:
    request, error = blocks(CHECKOUT / "docs/interface.md")
    head, _, body = request.partition("\n\n")
    line, *fields = head.splitlines()
    method, path, _ = line.split()
    headers = [(name, value) for name, _, value in (field.partition(": ") for field in fields)]
    headers = [(name, value.replace("<ACCESS_TOKEN>", TOKEN)) for name, value in headers if name != "Host"]
    response = send(body.encode(), method=method, path=path, headers=headers)
    assert response.plant == {"name": "Monstera", "tag": "tropical"}
    assert send(body.encode(), method=method, path=path, headers=headers).body.decode() == error.strip()


def test_the_commands_for_contributors_select_tests() -> None:
    commands = "".join(blocks(CHECKOUT / "docs/contributing.md"))
    paths, words = re.findall(r"\btests/[\w/.]+", commands), re.findall(r" -k (\w+)", commands)
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []
    assert [word for word in words if not any(word in name for name in TEST_NAMES)] == []
    assert len(paths) + len(words) == 3
    ci = (CHECKOUT / ".ci/run").read_text()
    assert [command for command in commands.splitlines()[-1].split(" && ") if command not in ci] == []
