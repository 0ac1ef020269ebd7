"""Every code block of the README and the docs, and every example, is executed by a test; this table says by which.

A block is code unless it is marked ```text: output, or a drawing. The table has a page's blocks in their order; a new
block, a test that is gone, and a test whose file does not name the page fail here. That the test does execute the
block is for its reader to see.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import blocks

ROOT = Path(__file__).resolve().parents[2]
TEXT = "text"
LANGUAGES = {"python", "sh", "sql", TEXT}

# Pages with tests of their own.
ELSEWHERE = {
    "docs/API.md": "tests/unit/test_api_reference.py",
    "docs/tutorial": "walked by tests/ha/test_tutorial.py, and with servers by tests/edges/test_tutorial_kafka.py",
}

HERE = "tests/unit/test_code_blocks.py"

# By page, the language of each of its blocks and the test that executes it; last the examples, each of which is one block.
TABLE = """
README.md
  sh      tests/unit/test_code_blocks.py::test_continuous_integration_types_what_the_readme_begins_with
  sh      tests/ha/test_wheel.py::test_the_readme_runs_as_written_from_a_wheel_in_an_empty_directory
  python  tests/ha/test_docs.py::test_the_readmes_flow_and_commands_run_as_written
  sh      tests/ha/test_docs.py::test_the_readmes_flow_and_commands_run_as_written
docs/AGGREGATES.md
  python  tests/ha/test_docs.py::test_the_aggregates_and_totals_run_as_written
  python  tests/ha/test_docs.py::test_the_aggregates_and_totals_run_as_written
docs/COMMANDS.md
  sh      tests/ha/test_commands_page.py::test_the_commands_of_the_page_are_answered_while_the_flow_runs
docs/CYCLES.md
  python  tests/ha/test_docs.py::test_the_loop_runs_as_written
docs/EDGES.md
  python  tests/spark/test_own_edges.py::TestTable
docs/ENRICH.md
  python  tests/ha/test_docs.py::test_the_enriched_flow_runs_as_written
docs/EVENT_TIME.md
  python  tests/ha/test_docs.py::test_the_event_time_flow_runs_as_written
  python  tests/ha/test_docs.py::test_the_join_runs_as_written
docs/KAFKA.md
  python  tests/edges/test_kafka_flow.py::test_the_flow_of_the_page_runs_as_written
docs/LAKE.md
  python  tests/edges/test_lake_flow.py::test_the_flow_of_the_page_goes_on_while_others_compact_its_tables
docs/LEDGER_POSTGRES.md
  sh      tests/edges/test_postgres_ledger_flows.py::test_the_commands_of_the_page_keep_the_ledger_in_the_database
  python  tests/edges/test_postgres_flow.py::test_the_ledger_of_the_page_is_in_the_database
docs/OWN_OPERATORS.md
  python  tests/ha/test_docs.py::test_the_flow_with_an_operator_of_its_own_runs_as_written
docs/POSTGRES.md
  python  tests/edges/test_postgres_flow.py::test_the_tables_of_the_page_are_upserted_and_appended
docs/READING.md
  python  tests/spark/test_data_source.py::test_the_code_of_the_reading_page_runs_as_written
  python  tests/spark/test_data_source.py::test_the_code_of_the_reading_page_runs_as_written
docs/RECOVERY.md
  python  tests/ha/test_docs.py::test_the_flows_of_the_recovery_page_run_as_written
  python  tests/ha/test_docs.py::test_the_flows_of_the_recovery_page_run_as_written
  python  tests/ha/test_docs.py::test_the_flows_of_the_recovery_page_run_as_written
  python  tests/unit/flow/test_recovery_page.py::test_the_error_of_the_page_is_what_the_command_says
docs/SINKS.md
  python  tests/ha/test_docs.py::test_the_flow_of_the_sinks_page_runs_as_written
docs/SNAPSHOTS.md
  python  tests/ha/test_docs.py::test_the_worked_example_of_snapshots_runs_as_written
  sh      tests/ha/test_docs.py::test_the_worked_example_of_snapshots_runs_as_written
  sh      tests/ha/test_docs.py::test_the_worked_example_of_snapshots_runs_as_written
docs/SOURCES.md
  python  tests/ha/test_docs.py::test_the_flows_of_the_sources_page_run_as_written
  python  tests/spark/test_inferred_schemas.py::test_the_flow_without_a_schema_of_the_page_runs_as_written
  python  tests/ha/test_docs.py::test_the_flows_of_the_sources_page_run_as_written
docs/STREAMS.md
  python  tests/edges/test_read_stream.py::test_the_flow_of_the_streams_page_runs_as_written
docs/SUBSTREAMS.md
  python  tests/ha/test_docs.py::test_the_hours_of_the_substreams_page_leave_when_they_end
  python  tests/unit/protocols/test_substreams_page.py::test_the_tracker_of_the_page_answers_as_it_says
docs/VERIFY.md
  sh      tests/ha/test_verify.py::test_the_command_of_the_page_reports_of_every_policy
  sh      tests/ha/test_verify_standbys.py::test_the_command_of_the_page_finds_no_violation_under_any_policy
  sh      tests/edges/test_verify_targets.py::test_a_flow_into_servers_is_precise_also_when_they_are_restarted
  python  tests/ha/test_verify.py::test_a_sink_that_writes_before_it_looks_is_caught_with_a_command_that_shows_it_again
  python  tests/ha/test_verify.py::test_a_plain_spark_job_is_told_what_a_crash_leaves_in_its_sink
examples/demo.py
  python  tests/unit/test_code_blocks.py::test_continuous_integration_types_what_the_readme_begins_with
examples/orders.py
  python  tests/unit/test_code_blocks.py::test_continuous_integration_types_what_the_readme_begins_with
examples/own_edges.py
  python  tests/spark/test_own_edges.py::test_a_flow_of_ones_own_edges_goes_on_where_it_was
examples/score_propagation.py
  python  tests/ha/test_cycles.py::test_a_loop_that_is_killed_on_its_way_round_goes_on_and_is_exact
"""


def executed() -> dict[str, list[tuple[str, str]]]:
    """The table: by page, languages and tests."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in TABLE.strip().splitlines():
        if line[0] != " ":
            rows = found.setdefault(line, [])
        else:
            language, test = line.split()
            rows.append((language, test))
    return found


def all_pages() -> list[str]:
    """All pages but those that are looked at elsewhere."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if not any(f"{name}/".startswith(f"{out}/") for out in ELSEWHERE)]


def examples() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("*.py"))]


def languages(text: str) -> list[str]:
    """What each fenced block is marked with; empty where it is not marked."""
    fences = re.findall(r"^ *(?:```+|~~~+)(.*)$", text, re.MULTILINE)
    return [mark.strip() for mark in fences[::2]]


def objections(page: str, text: str) -> Iterator[str]:
    """What is wrong with a page, or with what the table has of it."""
    found = languages(text)
    for mark in [mark for mark in found if mark not in LANGUAGES]:
        yield (
            f"{page} has a block marked {mark!r}: mark output and drawings text, and code python, sh or sql"
        )
    code = [mark for mark in found if mark != TEXT]
    listed = [language for language, _ in executed().get(page, [])]
    if code != listed:
        yield (
            f"{page} has the code blocks {code}, and the table in {HERE} lists {listed}: have a test execute what is new, "
            "and list it there in the order of the page; mark what is no code as text"
        )


def wrong_test(test: str, name: str) -> str | None:
    """Why a test cannot be the one that executes a page or an example."""
    file, _, function = test.partition("::")
    if not (ROOT / file).is_file():
        return f"{test}, listed for {name}, is not there: there is no such file"
    text = (ROOT / file).read_text().replace(TABLE, "")
    defined = (ast.FunctionDef, ast.ClassDef)
    if function not in [node.name for node in ast.parse(text).body if isinstance(node, defined)]:
        return f"{test}, listed for {name}, is not there: list the test that executes it now"
    if Path(name).name not in text:
        return f"{file} does not name {name}: list the test that executes it"
    return None


@pytest.mark.parametrize("page", all_pages())
def test_every_code_block_is_in_the_table(page: str) -> None:
    assert list(objections(page, (ROOT / page).read_text())) == []


def test_every_page_example_and_test_of_the_table_is_there() -> None:
    assert set(executed()) <= {*all_pages(), *examples()}
    wrong = [wrong_test(test, name) for name, rows in executed().items() for _, test in rows]
    assert [why for why in wrong if why] == []


def test_every_chapter_of_the_tutorial_is_walked() -> None:
    walks = "".join(
        (ROOT / file).read_text() for file in re.findall(r"tests\S+\.py", ELSEWHERE["docs/tutorial"])
    )
    chapters = sorted(path.name for path in (ROOT / "docs" / "tutorial").glob("*.md"))
    assert [name for name in chapters if f'"{name}"' not in walks] == []
    for name in chapters:
        assert set(languages((ROOT / "docs" / "tutorial" / name).read_text())) <= {"python", "sh", TEXT}


def test_what_is_not_listed_not_marked_or_not_there_is_told() -> None:
    page = "docs/CYCLES.md"
    whole = (ROOT / page).read_text()
    for planted, told in (
        ("```python\nprint()\n```\n", "has the code blocks ['python', 'python'], and the table"),
        ("```\nsome output\n```\n", "has a block marked ''"),
        ("```py\nprint()\n```\n", "has a block marked 'py'"),
    ):
        assert told in " ".join(objections(page, f"{whole}\n{planted}"))
    assert list(objections(page, f"{whole}\n```text\nsome output\n```\n")) == []
    assert "no such file" in str(wrong_test("tests/ha/test_gone.py::test_it", page))
    assert "is not there" in str(wrong_test(f"{HERE}::test_gone", page))
    assert "does not name" in str(wrong_test("tests/unit/test_house.py::python_files", page))


def test_continuous_integration_types_what_the_readme_begins_with() -> None:
    """`make verify` takes too long for it: another test types the same command, of docs/VERIFY.md, on a small flow."""
    commands = re.findall(r"^(make \S+)", blocks(ROOT / "README.md", "sh")[0], re.MULTILINE)
    assert commands == ["make demo", "make verify", "make test"]
    assert {"make demo", "make test"} <= set((ROOT / ".ci" / "run").read_text().splitlines())
    recipes = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert "examples/demo.py" in recipes["demo"]
    assert 'with_name("orders.py")' in (ROOT / "examples" / "demo.py").read_text()
    shown = blocks(ROOT / "docs" / "VERIFY.md", "sh")[1]
    assert shown.startswith("holdfast verify orders.py --policies all --standbys 1 --faults kill,")
    assert (
        "holdfast verify examples/orders.py --policies all --standbys 1 --faults kill," in recipes["verify"]
    )


def test_every_example_is_listed_and_type_checked() -> None:
    assert set(examples()) <= set(executed()), f"have a test execute the new one, and list it in {HERE}"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "examples" in settings["tool"]["mypy"]["files"]
