"""Who stands by waits to be called, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

from holdfast.ledger import groups, holder
from holdfast.ledger.groups import GroupRow
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.news import News
from holdfast.runtime.standby import Standby


def test_a_standby_that_is_struck_off_the_list_waits_no_longer(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    supervisor = holder.supervise(ledger, "flow")
    groups.lay_out(ledger, supervisor, {}, {"main": ["s"]})
    groups.assign(ledger, supervisor, "main", "first", ["first"], "it starts the group")
    groups.add_worker(ledger, supervisor, "second", "main", "one is missing")
    rt: Any = SimpleNamespace(
        ledger=ledger, root=tmp_path, worker="second", group="main", news=News(ledger), own_stages=[],
        interrupt_jobs=lambda: None,
    )  # fmt: skip
    stop, called = Event(), []

    def wait() -> None:
        found: GroupRow | None = Standby(rt, stop).wait()
        called.append(found)

    with rt.news:
        waiting = Thread(target=wait)
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive(), "it is on the list, and was not called"
        groups.forget_worker(ledger, supervisor, "second", "its lease has stood still")
        waiting.join(15.0)
        ended = not waiting.is_alive()
        stop.set()
        waiting.join()
    assert ended
    assert called == [None]
