"""A follower that lost an epoch by a good part of its length waits for its leader's next commit, and for nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import cast

import pytest

from holdfast.ledger import epochs, groups, holder
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.context import Runtime
from holdfast.runtime.news import News
from holdfast.runtime.pacing import Pace
from registered import register_stage

LONG_S = 600.0  # an epoch of which no test sees the end


@dataclass
class Follower:
    """A stage in a ledger, and the worker that follows its leader."""

    ledger: Ledger
    leads: bool = False
    stopping: Event = field(default_factory=Event)
    closing: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        register_stage(self.ledger, holder.take(self.ledger, "flow"), "s", None, [])
        self.news = News(self.ledger)
        self.pace = Pace(cast(Runtime, self))

    def row(self) -> StageRow:
        with self.ledger.read() as tx:
            return epochs.stage_row(tx, "s")

    def commit(self) -> None:
        """As the leader does."""
        row, attempt = epochs.record_plan(self.ledger, self.row(), {"ranges": {}})
        epochs.commit_epoch(self.ledger, Commit(row, row.head + 1, attempt, {}, None, {}))

    def beaten(self, behind_share: float) -> None:
        """It finishes an epoch so late."""
        row = self.row()
        self.commit()
        time.sleep(0.01)
        with self.ledger.read() as tx:
            at_ms = epochs.committed_ms(tx, row, row.head + 1)
        assert at_ms is not None
        epoch_s = (time.time() - at_ms / 1000) / behind_share
        self.pace.lost(row, epoch_s)

    def ended_by(self, what: Callable[[], object]) -> bool:
        """Whether it waits until just this has happened."""
        waiting = Thread(target=self.pace.keep)
        waiting.start()
        waiting.join(0.1)
        waited = waiting.is_alive()
        what()
        waiting.join(5.0)
        return waited and not waiting.is_alive()


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    # All waits here end because of something; the time by which they end anyway is tested by itself.
    monkeypatch.setattr(
        "holdfast.runtime.pacing.lets_pass_s", lambda behind_s, epoch_s: LONG_S if behind_s < epoch_s else 0.0
    )
    return Follower(Ledger(tmp_path))


def test_a_follower_that_was_late_waits_for_the_next_commit_and_once(follower: Follower) -> None:
    follower.beaten(0.5)
    assert follower.ended_by(follower.commit)
    assert not follower.ended_by(lambda: None), "it has waited"


def test_a_follower_that_is_fenced_with_its_group_waits_no_longer(follower: Follower) -> None:
    def expelled() -> None:
        with follower.ledger.unfenced_write() as tx:
            groups.raise_generations(tx, ["s"], "the primary is gone")

    follower.beaten(0.5)
    assert follower.ended_by(expelled)


def test_a_follower_that_is_to_lead_or_to_stop_waits_no_longer(follower: Follower) -> None:
    follower.beaten(0.5)
    assert follower.ended_by(lambda: setattr(follower, "leads", True))
    follower.leads = False
    follower.beaten(0.5)
    assert follower.ended_by(follower.closing.set)
    follower.closing.clear()
    follower.beaten(0.5)
    assert follower.ended_by(follower.stopping.set)


def test_an_epoch_that_is_committed_already_is_not_waited_for(follower: Follower) -> None:
    follower.beaten(0.5)
    follower.commit()
    assert not follower.ended_by(lambda: None)


def test_a_wait_ends_where_nothing_happens(tmp_path: Path) -> None:
    follower = Follower(Ledger(tmp_path))
    follower.beaten(0.5)
    began = time.monotonic()
    follower.pace.keep()
    assert 0.0 < time.monotonic() - began < 5.0


def test_a_follower_that_won_never_waits(follower: Follower) -> None:
    assert not follower.ended_by(lambda: None)
    follower.beaten(2.0)
    assert not follower.ended_by(lambda: None), "it was behind by epochs"
