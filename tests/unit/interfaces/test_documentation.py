"""docs/COMMANDS.md names every command, every option and every field of the JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from captured_state import captured
from command import holdfast
from holdfast.interfaces.cli import app
from written_state import WrittenState

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "COMMANDS.md").read_text()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SECTIONS = dict(re.findall(r"^## holdfast (\w+).*?\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE))


def fields(value: object) -> set[str]:
    """The names in a JSON document, but for those that users chose."""
    if isinstance(value, dict):
        return {name for name in value if ":" not in name} | {
            n for inner in value.values() for n in fields(inner)
        }
    return {name for inner in value for name in fields(inner)} if isinstance(value, list) else set()


def test_every_command_has_a_section_and_examples_in_its_help() -> None:
    assert set(SECTIONS) == set(COMMANDS)
    for name in sorted(COMMANDS):
        assert "Examples:" in COMMANDS[name].help
        assert f"holdfast {name}" in COMMANDS[name].help


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"bench", "snapshot"}))
def test_every_option_is_documented(command: str) -> None:
    options = {
        option for parameter in COMMANDS[command].params for option in parameter.opts if option[0] == "-"
    }
    everywhere = {"--help", "--json", "--work-dir"}
    assert options - everywhere <= set(re.findall(r"--?[a-z][a-z-]*", SECTIONS[command]))


SNAPSHOT = dict(
    re.findall(r"^### holdfast snapshot (\w+).*?\n(.*?)(?=^###? |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)
)


def test_every_command_about_snapshots_is_documented_with_its_options() -> None:
    commands = COMMANDS["snapshot"].commands
    assert set(SNAPSHOT) == set(commands)
    for name, command in commands.items():
        assert f"`holdfast snapshot {name}" in command.help
        options = {option for parameter in command.params for option in parameter.opts if option[0] == "-"}
        assert options - {"--help", "--json", "--work-dir"} <= set(
            re.findall(r"--?[a-z][a-z-]*", SNAPSHOT[name])
        )


@pytest.mark.parametrize("command", ["status", "epochs", "state"])
def test_every_field_is_documented(work: Path, command: str) -> None:
    written = WrittenState(work)
    written.discover(1)
    written.commit({"ann": (1.0, 1)}, bucket=10)
    words = [command] if command == "status" else [command, "means"]
    found = holdfast(*words, "--work-dir", work, "--json").json
    users = {"means", "user", "window_end", "mean", "in", "out"}
    missing = fields(found) - users - set(re.findall(r"`(\w+)`", SECTIONS[command]))
    assert missing - {"late", "disk", "memory"} == set()


def test_the_fields_of_an_explanation_are_documented(tmp_path: Path) -> None:
    path = tmp_path / "documented_flow.py"
    path.write_text(
        """
import holdfast as hf

flow = hf.Flow("f")
one = flow.source("one", hf.files("in/", schema="k long, at timestamp"))
two = flow.source("two", hf.rows([{"k": 1, "at": None}]))
one.union(two).dedup("k", time="at", within="1 hour").group_by("k").window("at", tumbling="1 hour").agg(
    n=hf.count()
).to(hf.parquet("out/"))
"""
    )
    found = holdfast("explain", path, "--json").json
    missing = fields(found) - {"n"} - set(re.findall(r"`(\w+)`", SECTIONS["explain"]))
    assert missing == set()


def test_every_field_about_snapshots_is_documented(work: Path) -> None:
    flow = captured(work)
    flow.sink_has(2)
    flow.stop()
    documented = {
        name: set(re.findall(r"`(\w+)`", text)) for name, text in (*SNAPSHOT.items(), *SECTIONS.items())
    }
    listed = fields(flow.say("list", "--json").json)
    for found, names in (
        (listed, documented["list"]),
        (fields(flow.say("show", "early", "--json").json), documented["show"] | documented["list"]),
        (fields(flow.say("delete", "0", "--json").json), documented["delete"]),
        (
            fields(flow.say("restore", "early", "--new-targets", "--json").json),
            documented["restore"],
        ),
        (fields(flow.say("--json", command="status").json["snapshots"]), documented["status"] | listed),
    ):
        assert found - {"means"} - names == set()
