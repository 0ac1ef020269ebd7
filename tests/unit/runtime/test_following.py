"""Whoever watches a run is told what a person should know of, once."""

from __future__ import annotations

from pathlib import Path

from holdfast.ledger import holder
from holdfast.ledger.definitions import CODE_CHANGED
from holdfast.ledger.ledger import Ledger, record_event
from holdfast.runtime.following import Follower


def test_changed_code_is_told_once_and_not_that_of_earlier_runs(tmp_path: Path) -> None:
    ledger, follower = Ledger(tmp_path), Follower()
    generation = holder.take(ledger, "f")

    def happens(kind: str, reason: str) -> None:
        with ledger.write(generation) as tx:
            record_event(tx, kind, reason, stage="tot")

    happens(CODE_CHANGED, "in an earlier run")
    follower.read(ledger)
    happens(CODE_CHANGED, "its code has changed (transform `f`: helper `g`)")
    happens("merged", "not for people")
    follower.read(ledger)
    follower.read(ledger)
    assert [notice.reason for notice in follower.progress.notices] == [
        "stage tot: its code has changed (transform `f`: helper `g`)"
    ]
    ledger.close()
