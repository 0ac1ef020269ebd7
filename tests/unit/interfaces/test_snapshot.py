"""`holdfast snapshot` says what the ledger holds, waits for what it asks for, and refuses what would lose something."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import sqlalchemy as sa

from captured_state import Captured, captured
from command import holdfast
from holdfast.ledger import epochs, readers, schema, snapshots
from holdfast.ledger.process import Process
from written_state import WrittenState


@pytest.fixture
def flow(work: Path) -> Captured:
    return captured(work)


@contextmanager
def meanwhile(do: Callable[[], object]) -> Iterator[None]:
    """Something that another process does while the command waits."""
    thread = threading.Thread(target=do)
    thread.start()
    yield
    thread.join()


def when_asked(flow: Captured, do: Callable[[int], object]) -> Callable[[], None]:
    def wait() -> None:
        deadline = time.monotonic() + 10
        while not flow.asked() and time.monotonic() < deadline:
            time.sleep(0.02)
        do(flow.asked()[0])

    return wait


def test_create_waits_until_it_is_complete_and_says_what_it_covers(flow: Captured) -> None:
    with meanwhile(when_asked(flow, lambda _: flow.take())):
        found = flow.say("create", "--name", "late", "--json").json
    assert (found["number"], found["name"], found["asked"], found["kept"]) == (3, "late", True, True)
    assert found["epochs"] == {"means": 3}
    assert found["status"] in ("committed", "done"), "it is complete before the sinks have it"
    assert found["bytes"] > 0
    assert found["seconds"] >= 0
    with meanwhile(when_asked(flow, lambda _: flow.take())):
        first, second, last = flow.say("create").out.splitlines()
    assert first == "snapshot 4 is asked for"
    assert second == "snapshot 4: stage means has added its part, up to epoch 3"
    assert last.startswith("snapshot 4 is complete after ")
    assert " s: means 3; 0 B since the one before. It stays until" in last


def test_create_is_in_vain_where_nothing_runs_or_nothing_is_captured(flow: Captured) -> None:
    with flow.ledger.write(flow.generation) as tx:
        snapshots.set_region(tx, ["means"], [])
    error = flow.error("create")
    assert "no stage of this flow recovers by snapshots" in error["message"]
    assert ".recover(hf.snapshot(...))" in error["hint"]
    flow.stop()
    error = flow.error("create")
    assert "the flow is not running" in error["message"]
    assert "holdfast run" in error["hint"]
    assert flow.asked() == []


@pytest.mark.parametrize("name", ["7", "latest", "  "])
def test_a_name_that_means_something_else_is_a_mistake_in_the_command(flow: Captured, name: str) -> None:
    said = flow.say("create", "--name", name)
    assert said.status == 2
    assert "cannot be told from a number" in said.err
    assert flow.asked() == []


def test_a_name_is_given_once_among_those_that_are_kept(flow: Captured) -> None:
    assert flow.error("create", "--name", "early")["message"] == "snapshot 1 has the name 'early' already"
    assert flow.say("delete", "early").out == "snapshot 1 (early), which was done, is forgotten.\n"
    with meanwhile(when_asked(flow, lambda _: flow.take())):
        assert flow.say("create", "--name", "early", "--json").json["number"] == 3


def test_create_reports_one_that_was_aborted(flow: Captured) -> None:
    def drop(number: int) -> None:
        snapshots.abort(flow.ledger, flow.generation, number, "it took longer than 1 second", to_blame=True)

    with meanwhile(when_asked(flow, drop)):
        error = flow.error("create", "--name", "late")
    assert error["message"] == "snapshot 3 was aborted: it took longer than 1 second"
    assert "  aborted because: it took longer than 1 second\n" in flow.say("show", "late").out
    assert "1 in a row failed" in flow.say(command="status").out


def test_nobody_is_left_wanting_what_nobody_waits_for(flow: Captured) -> None:
    error = flow.error("create", "--timeout", "1")
    assert (error["message"], error["heals"]) == (
        "snapshot 3 is not complete after 1 s: it has not begun",
        False,
    )
    assert flow.asked() == []
    with meanwhile(when_asked(flow, lambda _: flow.stop())):
        error = flow.error("create")
    assert error["message"] == "the flow stopped before snapshot 3 was complete"
    assert flow.asked() == []


def test_one_that_has_begun_goes_on_when_the_command_gives_up(flow: Captured) -> None:
    def begin(number: int) -> None:
        snapshots.begin(flow.ledger, flow.generation, "aligned")

    with meanwhile(when_asked(flow, begin)):
        error = flow.error("create", "--timeout", "3")
    assert error["message"] == "snapshot 3 is not complete after 3 s: it waits for means"
    assert (error["heals"], "snapshot show 3" in error["hint"]) == (True, True)
    assert flow.error("delete", "3")["message"] == "snapshot 3 is on its way"


def test_the_list_has_the_newest_last_and_says_which_are_kept(flow: Captured) -> None:
    found = flow.say("list", "--json").json
    assert found["flow"] == "written"
    assert [(one["number"], one["name"], one["kept"]) for one in found["snapshots"]] == [
        (0, None, False),
        (1, "early", True),
        (2, None, True),
    ]
    assert [one["epochs"]["means"] for one in found["snapshots"]] == [-1, 0, 2]
    head, *lines = flow.say("list").out.splitlines()
    assert head.split() == ["number", "name", "status", "mode", "kept", "begun", "took", "bytes", "epochs"]
    assert lines[0].endswith("means none")
    assert lines[1].split()[:5] == ["1", "early", "done", "aligned", "yes"]


def test_a_flow_without_snapshots_has_an_empty_list(work: Path) -> None:
    WrittenState(work)
    assert holdfast("snapshot", "list", "--work-dir", work, "--json").json["snapshots"] == []
    assert "There is no snapshot" in holdfast("snapshot", "list", "--work-dir", work).out


def test_show_has_parts_positions_who_needs_it_and_who_is_ahead(flow: Captured) -> None:
    flow.sink_has(2)
    found = flow.say("show", "early", "--json").json
    assert found["parts"] == {
        "means": {"epoch": 0, "positions": {"source:in": 1}, "in_flight": {}, "bytes": found["bytes"]}
    }
    assert found["ahead"] == [{"consumer": "sink:out", "stage": "means", "had": 2, "covered": 0}]
    lines = flow.say("show", "1").out.splitlines()
    assert lines[0] == "snapshot 1 (early): done, aligned"
    assert "  needed by: whoever asked for it, until it is deleted" in lines
    assert "    reads on: source:in from 1" in lines
    assert lines[-1] == "  ahead of it: sink:out has had epoch 2 of means"
    assert "  needed by: the flow: a failure returns to it" in flow.say("show", "latest").out
    assert "  needed by: nobody" in flow.say("show", "0").out
    error = flow.error("show", "never")
    assert (error["message"], error["hint"]) == (
        "there is no snapshot never",
        "These are known: 0, early, 2.",
    )


def test_what_a_failure_would_return_to_is_not_deleted(flow: Captured) -> None:
    error = flow.error("delete", "2")
    assert "snapshot 2 is the newest that is complete: a failure would return to it" in error["message"]
    assert flow.say("delete", "1", "--json").json == {"number": 1, "name": "early", "status": "done"}
    assert flow.error("show", "early")["message"] == "there is no snapshot early"


def test_restore_says_what_is_undone_and_a_dry_run_changes_nothing(flow: Captured) -> None:
    flow.sink_has(2)
    flow.stop()
    said = flow.say("restore", "latest", "--dry-run").out
    assert said == (
        "flow written would return to snapshot 2\n"
        "  stage means: to epoch 2, 1 epoch undone\n"
        "    reads again: source:in 3, 7 rows\n"
    )
    assert flow.say(command="status").out.count("returned") == 0
    found = flow.say("restore", "early", "--new-targets", "--json").json
    assert found["stages"]["means"] == {
        "epoch": 0,
        "head": 3,
        "undone": 3,
        "reads_again": {"source:in": {"positions": [1, 4], "rows": 48}},
    }
    assert found["new_targets"] == [{"sink": "out", "stage": "means", "had": 2, "from": 1}]
    assert (found["gone"], found["dry_run"]) == ([2], False)
    with flow.ledger.read() as tx:
        assert epochs.stage_row(tx, "means").head == 0
        assert epochs.stage_row(tx, "means").branch == 1
    again = flow.say("restore", "early").out
    assert (
        again == "flow written returned to snapshot 1 (early)\n  stage means: to epoch 0, no epochs undone\n"
    )


def test_restore_is_refused_while_a_process_runs_the_flow(flow: Captured) -> None:
    flow.stop()
    with subprocess.Popen(["sleep", "60"]) as other:
        with flow.ledger.unfenced_write() as tx:
            tx.execute(sa.update(schema.flow).values(holder=asdict(Process.here(other.pid))))
        for more in ((), ("--dry-run",)):
            error = flow.error("restore", "latest", *more)
            assert f"process {other.pid} on" in error["message"]
            assert error["hint"].startswith("Stop it first")
        other.kill()
        other.wait()
        assert flow.say("restore", "latest").status == 0


def test_what_has_left_the_region_is_not_undone_behind_anybodys_back(flow: Captured) -> None:
    flow.sink_has(2)
    flow.stop()
    error = flow.error("restore", "early")
    assert "sink:out has had epoch 2 of stage 'means', and the snapshot ends at 0" in error["message"]
    assert "--new-targets" in error["hint"]
    with flow.ledger.unfenced_write() as tx:
        readers.enrol(tx, "board", "channel:means.out", 2)
    error = flow.error("restore", "early", "--new-targets")
    assert error["message"].endswith(
        "reader:board has had epoch 1 of stage 'means', and the snapshot ends at 0"
    )
    assert "cannot be set back" in error["hint"]
    error = flow.error("restore", "0", "--new-targets")
    assert error["message"] == "snapshot 0 cannot be returned to: what it needs is no longer kept"


def test_status_has_the_last_snapshot_its_age_and_what_a_failure_would_undo(flow: Captured) -> None:
    found = flow.say("--json", command="status").json["snapshots"]
    assert (found["last"]["number"], found["failed_in_a_row"], found["would_undo"]) == (2, 0, {"means": 1})
    assert 0 <= found["age_seconds"] < 60
    (line,) = [line for line in flow.say(command="status").out.splitlines() if line.startswith("snapshots:")]
    assert line.startswith("snapshots: 2 is the last complete, ")
    assert line.endswith(" s old; epochs that a failure would undo: means 1")


def test_status_says_that_nothing_leaves_before_the_first_snapshot(work: Path) -> None:
    flow = Captured(work)
    flow.epoch()
    flow.ask()
    found = flow.say("--json", command="status").json["snapshots"]
    assert (found["last"], found["under_way"]) == (None, [0])
    assert "snapshots: none is complete yet" in flow.say(command="status").out
