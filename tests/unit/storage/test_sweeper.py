"""The sweeper lets go of nothing that a job has found and is about to read, or that a consumer still needs; what it
lets go of is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import pytest
import sqlalchemy as sa

from holdfast.ledger import epochs, files, inputs, schema, starts
from holdfast.ledger.files import LayerRow
from holdfast.runtime.context import Pins
from holdfast.storage.shipper import Route
from holdfast.storage.sweeper import sweep
from holdfast.storage.workdir import attempt_directory
from written_state import WrittenState

USERS = {"ann": (1.0, 1), "bob": (2.0, 1)}
PAUSE_S = 0.3  # for the other thread to get as far as it may


@pytest.fixture
def written(tmp_path: Path) -> WrittenState:
    found = WrittenState(tmp_path / "work")
    found.discover(2, 2)
    found.commit(USERS)
    found.commit(USERS)
    return found


def spine(written: WrittenState) -> list[LayerRow]:
    with written.ledger.read() as tx:
        row = epochs.stage_row(tx, "means")
        return files.cover(files.live_layers(tx, row), row.head)[0]


def swept(written: WrittenState, pins: Pins, consumers: Sequence[str] = ()) -> None:
    sweep(written.ledger, written.root, "means", written.generation, consumers, Route(disk=False), pins.held)


def with_segments(written: WrittenState) -> list[Path]:
    """Let every epoch so far have written one segment."""
    paths = []
    with written.ledger.write(written.generation) as tx:
        row = epochs.stage_row(tx, "means")
        for layer in files.live_layers(tx, row):
            name = f"{attempt_directory('means', layer.attempt)}/segment"
            segment = {"rows": 1, "bytes": 7, "files": [{"path": name}]}
            epochs.commit_segment(tx, row, layer.attempt, layer.first, "out", segment)
            paths.append(written.root / name)
    for path in paths:
        path.write_bytes(b"segment")
    return paths


def there(written: WrittenState, layers: Sequence[LayerRow]) -> bool:
    return all((written.root / run["path"]).exists() for layer in layers for run in layer.runs)


def test_a_merge_that_commits_while_a_job_finds_its_spine_takes_no_file_from_it(
    written: WrittenState,
) -> None:
    pins, read = Pins(), Event()

    def found() -> list[LayerRow]:
        layers = spine(written)
        read.set()
        sweeper.join(PAUSE_S)
        return layers

    def merged_and_swept() -> None:
        read.wait()
        written.merge(0, 1)
        swept(written, pins)

    sweeper = Thread(target=merged_and_swept)
    sweeper.start()
    with pins.hold(found) as layers:
        sweeper.join()
        assert [(layer.first, layer.last) for layer in layers] == [(0, 0), (1, 1)]
        assert there(written, layers)
    swept(written, pins)
    assert not there(written, layers)


def test_a_job_that_looks_while_the_sweeper_is_at_work_finds_what_stays(written: WrittenState) -> None:
    pins, looked = Pins(), Event()
    found: list[Sequence[LayerRow]] = []

    def job() -> None:
        looked.wait()
        with pins.hold(lambda: spine(written)) as layers:
            found.append(layers)

    thread = Thread(target=job)
    thread.start()
    with pins.held() as held:
        looked.set()
        thread.join(PAUSE_S)
        written.merge(0, 1)
        assert held == set()
    thread.join()
    assert [(layer.first, layer.last) for layer in found[0]] == [(0, 1)]


def test_what_the_sweeper_has_condemned_since_it_was_missed_is_not_lost(written: WrittenState) -> None:
    condemned, missing = spine(written)
    with written.ledger.read() as tx:
        row = epochs.stage_row(tx, "means")
    files.condemn(written.ledger, row, [condemned.id], [])
    files.mark_lost(written.ledger, row, [condemned.id], [], "it is not there")
    files.mark_lost(written.ledger, row, [condemned.id, missing.id], [], "they are not there")
    table, events = schema.layers, schema.events
    with written.ledger.read() as tx:
        status = {i: status for i, status in tx.execute(sa.select(table.c.id, table.c.status))}
        reasons = tx.execute(sa.select(events.c.reason).where(events.c.kind == "lost")).scalars().all()
    assert status == {condemned.id: "condemned", missing.id: "lost"}
    assert reasons == ["they are not there"]


def test_an_epoch_that_a_consumer_has_yet_to_read_is_not_even_proposed_to_the_ledger(
    written: WrittenState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger would refuse to condemn it, but a slow consumer would then cost a write transaction per sweep."""
    read, unread = with_segments(written)
    with written.ledger.write(written.generation) as tx:
        starts.add_cursor(tx, "sink:out", "channel:means.out", 1)
    swept(written, Pins(), ["sink:out"])
    assert (read.exists(), unread.exists()) == (False, True)
    with written.ledger.read() as tx:
        assert [segment.epoch for segment in inputs.segments(tx, "means", "out", 0, 2)] == [1]

    def write(_: int) -> None:
        pytest.fail("a sweep that can let go of nothing writes to the ledger")

    monkeypatch.setattr(written.ledger, "write", write)
    swept(written, Pins(), ["sink:out"])
    assert unread.exists()
