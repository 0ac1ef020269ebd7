"""Sources are kept out until the trigger is due, channels never; the last batch is remembered in the manifest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.core.json import Json
from holdfast.flow.prefixes import Input
from holdfast.ledger.epochs import StageRow
from holdfast.runtime import ticks
from holdfast.runtime.ticks import Ticks
from written_state import WrittenState

SOURCE, CHANNEL = Input("source", "in"), Input("channel", "other", "out")
STAGE = SimpleNamespace(name="means", inputs=(CHANNEL, SOURCE))
SECOND_US = 1_000_000


def kept_out(written: WrittenState, made: Ticks) -> frozenset[Input]:
    with written.ledger.read() as tx:
        return made.kept_out(tx, STAGE, StageRow("means", 0, 1, 0, 0))  # type: ignore[arg-type]


def test_a_source_waits_for_the_clock_and_a_channel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, now = WrittenState(tmp_path), [5_000]
    before: Json = {"ticked_ms": 4_500}
    monkeypatch.setattr(ticks, "now_ms", lambda: now[0])
    monkeypatch.setattr(ticks, "manifest_of", lambda *_: before)
    made = Ticks(SECOND_US)
    assert kept_out(written, made) == frozenset(), (
        "it has nothing to take: whether it is silent is for others to say"
    )
    written.discover(3, 4)
    assert kept_out(written, made) == {SOURCE}
    assert not made.has_come("means")
    now[0] = 4_000
    assert made.has_come("means"), "a clock that was set back while it waits makes it wait no longer"
    now[0] = 5_500
    assert made.has_come("means")
    assert kept_out(written, made) == frozenset()
    now[0] = 4_000
    assert kept_out(written, made) == frozenset(), "a clock that was set back makes nobody wait"
    now[0] = 5_000
    assert made.take_at_once()
    assert kept_out(written, made) == frozenset()
    assert not made.take_at_once(), "loops are woken once"
    before.clear()
    assert kept_out(written, Ticks(SECOND_US)) == frozenset(), "the first batch is taken at once"


def test_epochs_that_read_no_source_do_not_put_the_next_batch_off() -> None:
    made = Ticks(SECOND_US)
    assert made.noted({"source:in": (0, 2), "channel:other.out": (0, 0)}, 700, {}) == {"ticked_ms": 700}
    closing = {"source:in": (2, 2), "channel:other.out": (0, 3)}
    assert made.noted(closing, 900, {"ticked_ms": 700}) == {"ticked_ms": 700}
    assert Ticks(None).noted(closing, 900, {}) == {}
