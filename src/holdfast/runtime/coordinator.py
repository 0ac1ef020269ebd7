"""Takes the snapshots of a region: begins them, has stages add their parts, commits or drops them.

One worker coordinates, the one that runs the first stage of the region; all of them add the parts of their own stages.
All that is known is in the ledger, so whoever comes after a crash goes on with it. Time is the coordinator's own
monotonic clock: a snapshot that it finds is timed anew.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.duration import spelled
from holdfast.core.errors import FlowError
from holdfast.ledger import epochs, files, snapshots
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.snapshots import Snapshot
from holdfast.protocols import snapshots as protocol
from holdfast.protocols.snapshots import Move, Pace
from holdfast.runtime.context import Runtime
from holdfast.runtime.planning import has_work
from holdfast.runtime.region import take_part

# A first snapshot is taken before anything is planned: what lies below it was made under another policy, or is nothing.
_BIRTH = "freeze"


class Coordinator:
    """The snapshots of one run."""

    def __init__(self, rt: Runtime, until_idle: bool) -> None:
        self._rt = rt
        self._until_idle = until_idle
        self._stages = list(rt.region)
        self._own = [stage for stage in rt.own if stage in rt.region]
        self._coordinates = bool(self._stages) and self._stages[0] in rt.own
        self._begun: dict[int, int] = {}  # by number, when this process first saw it
        self._begun_us = self._ended_us = _now_us()

    def __bool__(self) -> bool:
        """Whether there is anything to do for this worker, ever."""
        return bool(self._own)

    def step(self) -> bool:
        """Do what is to be done now; whether there was anything."""
        moved = any([take_part(self._rt, stage) for stage in self._own])
        if self._coordinates:
            moved = self._coordinated() or moved
        if moved:
            self._rt.alarm.ring()
        return moved

    def has_work(self, tx: sa.Connection) -> bool:
        """Whether a snapshot is under way or would cover more than the last one."""
        if not self._stages:
            return False
        if self._rt.script.cuts:
            return self._has_scripted_work(tx)
        under_way = protocol.PREPARING, protocol.COMMITTED, protocol.ASKED
        return bool(snapshots.all_snapshots(tx, *under_way)) or self._has_changed(tx)

    def _has_scripted_work(self, tx: sa.Connection) -> bool:
        """The same where a script says what to cut. Where it ends before the next cut, that snapshot is begun and no more."""
        script, under_way = self._rt.script, snapshots.all_snapshots(tx, protocol.PREPARING)
        if snapshots.all_snapshots(tx, protocol.COMMITTED) or script.can_cut(tx, self._stages):
            return True
        if not under_way:
            return self._mode_of_next(tx, 0, asked=False) is not None
        return any(one.covers(self._stages) for one in under_way)

    def _coordinated(self) -> bool:
        rt = self._rt
        with rt.ledger.read() as tx:
            if not snapshots.region(tx).issuperset(self._stages):
                return False
            under_way = snapshots.all_snapshots(tx, protocol.PREPARING)
            asked = snapshots.all_snapshots(tx, protocol.ASKED)
            published = [
                one.number
                for one in snapshots.all_snapshots(tx, protocol.COMMITTED)
                if self._is_published(tx, one)
            ]
            mode = self._mode_of_next(tx, len(under_way), bool(asked))
        moved = any([self._moved(snapshot) for snapshot in under_way])
        if published:
            crashpoints.reach("snapshot.before_done")
            snapshots.mark_done(rt.ledger, rt.generation, published)
        if mode is not None:
            number = snapshots.begin(rt.ledger, rt.generation, mode)
            self._begun[number] = self._begun_us = _now_us()
            crashpoints.reach("snapshot.after_begin")
        return moved or bool(published) or mode is not None

    def _mode_of_next(self, tx: sa.Connection, under_way: int, asked: bool) -> str | None:
        """How to take the next snapshot, None if none is to be begun now."""
        settings = self._rt.plan.snapshots
        assert settings is not None
        if snapshots.last_complete(tx, self._stages) is None:
            return None if under_way else _BIRTH
        if self._rt.script.cuts:
            return settings.mode if not under_way and self._rt.script.next_cut(tx, self._stages) else None
        if not asked and not self._has_changed(tx):
            return None
        at_rest = asked or (self._until_idle and not self._is_busy(tx))
        due = protocol.is_due(self._pace(), _now_us(), self._begun_us, self._ended_us, under_way, at_rest)
        return settings.mode if due else None

    def _moved(self, snapshot: Snapshot) -> bool:
        """Commit a snapshot that is complete, drop one that takes too long; whether it was either."""
        rt = self._rt
        begun_us = self._begun.setdefault(snapshot.number, _now_us())
        with rt.ledger.read() as tx:
            safe = {stage: self._safe(tx, stage) for stage in self._stages}
        now_us = begun_us if rt.script.cuts else _now_us()
        move = protocol.next_move(rt.region, snapshot.parts, safe, begun_us, now_us, self._pace())
        if move is Move.WAIT:
            return False
        if move is Move.COMMIT:
            crashpoints.reach("snapshot.before_commit")
            snapshots.commit(rt.ledger, rt.generation, snapshot)
            crashpoints.reach("snapshot.after_commit")
        else:
            self._dropped(snapshot)
        self._begun.pop(snapshot.number)
        self._ended_us = _now_us()
        return True

    def _dropped(self, snapshot: Snapshot) -> None:
        rt, pace = self._rt, self._pace()
        missing = [stage for stage in self._stages if stage not in snapshot.parts]
        waited = f"for {', '.join(missing)}" if missing else "for files to be carried"
        reason = f"it took longer than {spelled(pace.timeout_us)}, waiting {waited}"
        snapshots.abort(rt.ledger, rt.generation, snapshot.number, reason, to_blame=True)
        with rt.ledger.read() as tx:
            found = [(one.status, one.to_blame) for one in snapshots.all_snapshots(tx)]
        failed = protocol.failed_in_a_row(found)
        if failed > pace.tolerate:
            raise FlowError(
                f"{failed} snapshots in a row have failed, and {pace.tolerate} are tolerated; the last: {reason}",
                operation="snapshot",
                hint="Give it more time with timeout=, let more fail with tolerate=, or, where a slow stage keeps the "
                'markers waiting, say mode="unaligned". Nothing is lost: the next run goes on from the last complete one.',
            )

    def _is_published(self, tx: sa.Connection, snapshot: Snapshot) -> bool:
        """Whether all sinks have what a snapshot covers."""
        sinks = [sink for sink in self._rt.plan.sinks if sink.stage in snapshot.parts]
        return all(
            ledger_inputs.processed(tx, f"sink:{sink.name}", sink.input.id) > snapshot.parts[sink.stage].epoch
            for sink in sinks
        )

    def _has_changed(self, tx: sa.Connection) -> bool:
        last = snapshots.last_complete(tx, self._stages)
        return last is None or any(
            epochs.stage_row(tx, stage).head != last.parts[stage].epoch for stage in self._stages
        )

    def _is_busy(self, tx: sa.Connection) -> bool:
        return any(has_work(self._rt, tx, self._rt.stages[stage]) for stage in self._stages)

    def _safe(self, tx: sa.Connection, stage: str) -> int:
        """Up to which epoch the files of a stage are where they survive."""
        tiers = self._rt.route(stage).tiers
        head = epochs.stage_row(tx, stage).head
        return min((files.safe_point(tx, stage, tier) for tier in tiers), default=head)

    def _pace(self) -> Pace:
        settings = self._rt.plan.snapshots
        assert settings is not None
        return Pace(
            settings.every_us,
            settings.min_pause_us,
            settings.max_concurrent,
            settings.timeout_us,
            settings.tolerate,
        )


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
