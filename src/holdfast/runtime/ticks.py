"""Holds rows of sources back until the flow's trigger lets an epoch take them.

Only sources are held back: epochs that read channels, close windows or end substreams are planned as soon as they can be.
When an epoch last took rows of a source is in the manifest, so whoever goes on after a failure keeps the interval. A
run that is to end when all is read does not wait for the clock, once its sources have nothing more to come.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.flow.flow_plan import StageSpec
from holdfast.flow.prefixes import Input
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow, manifest_of
from holdfast.protocols.trigger import is_due


class Ticks:
    """When the stages of a worker may take rows of their sources."""

    def __init__(self, every_us: int | None) -> None:
        self._every_us = every_us
        self._at_once = False
        self._waiting: dict[str, int | None] = {}  # by stage that is held back: its last batch

    def take_at_once(self) -> bool:
        """Hold nothing back from here on; whether anything could have been held back before."""
        changed, self._at_once = self._every_us is not None and not self._at_once, True
        return changed

    def kept_out(self, tx: Connection, stage: StageSpec, row: StageRow) -> frozenset[Input]:
        """The sources of a stage that hold something which it must not take yet."""
        sources = [origin for origin in stage.inputs if origin.kind == "source"]
        if self._every_us is None or self._at_once or not sources:
            return frozenset()
        last_ms = (manifest_of(tx, row, row.head) or {}).get("ticked_ms")
        waiting = [origin for origin in sources if _has_unread(tx, stage, origin)]
        if not waiting or is_due(last_ms, now_ms(), self._every_us):
            self._waiting.pop(stage.name, None)
            return frozenset()
        self._waiting[stage.name] = last_ms
        return frozenset(waiting)

    def has_come(self, stage: str) -> bool:
        """Whether a stage that waited for the clock need not wait any longer."""
        return stage in self._waiting and is_due(self._waiting[stage], now_ms(), self._every_us)

    def noted(self, ranges: Mapping[str, tuple[int, int]], planned_ms: int, before: Json) -> Json:
        """What a manifest says of it, after that of the epoch before; nothing in a flow without a trigger."""
        if self._every_us is None:
            return {}
        took = any(name.startswith("source:") and stop > start for name, (start, stop) in ranges.items())
        return {"ticked_ms": planned_ms if took else before.get("ticked_ms")}


def now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000


def _has_unread(tx: Connection, stage: StageSpec, origin: Input) -> bool:
    read = ledger_inputs.processed(tx, f"stage:{stage.name}", origin.id)
    return ledger_inputs.number_of_items(tx, origin.name) > read
