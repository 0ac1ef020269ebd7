"""How far a flow is, as the ledger tells: for a supervisor, whose workers are other processes."""

from __future__ import annotations

import time

import sqlalchemy as sa

from holdfast.core import limits
from holdfast.ledger import groups, schema
from holdfast.ledger.definitions import CODE_CHANGED
from holdfast.ledger.lag import standings
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.skips import SKIPPED
from holdfast.ledger.source_schemas import SCHEMA_CHANGED, SCHEMA_INFERRED
from holdfast.ledger.starts import NOT_SEEN
from holdfast.runtime.news import Outlook
from holdfast.runtime.progress import EpochSample, MergeSample, Notice, Progress, Report

# Events that a person is told of while a flow runs.
_TOLD = (*groups.TOLD, NOT_SEEN, CODE_CHANGED, SCHEMA_INFERRED, SCHEMA_CHANGED, SKIPPED)


class Follower:
    """Reads what was committed since the last look into a `Progress`."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._seen: dict[str, int] = {}
        self._event = 0
        self._noticed: int | None = None
        self._look_at = 0.0

    def look(self, ledger: Ledger, outlook: Outlook) -> Progress:
        """What there is to show now; the ledger is asked only so often, and only if it has changed."""
        if time.monotonic() >= self._look_at and outlook.is_due():
            outlook.look()
            self._look_at = time.monotonic() + limits.MEASURE_EVERY_MS / 1000
            self.read(ledger)
        return self.progress

    def read(self, ledger: Ledger) -> None:
        """Ask the ledger."""
        with ledger.read() as tx:
            heads = tx.execute(
                sa.select(schema.stages.c.stage, schema.stages.c.head, schema.stages.c.branch)
            ).all()
            for stage, head, branch in heads:
                self._read_stage(tx, stage, head, branch)
            self._read_merges(tx)
            self._read_notices(tx)
            self._read_sinks(tx)
            self.progress.measured(standings(tx))

    def report(self, ledger: Ledger, flow: str, generation: int) -> Report:
        """What the whole run did."""
        self.read(ledger)
        progress = self.progress
        return Report(flow, generation, time.monotonic() - progress.started, progress.stages, progress.sinks)

    def _read_stage(self, tx: sa.Connection, stage: str, head: int, branch: int) -> None:
        table = schema.manifests
        mine = (table.c.stage == stage, table.c.branch == branch)
        if stage not in self._seen:
            last = tx.execute(
                sa.select(table.c.body).where(*mine, table.c.epoch == head)
            ).scalar_one_or_none()
            self.progress.resume(
                stage, head, (last or {}).get("state_rows", 0), (last or {}).get("totals", {})
            )
            self._seen[stage] = head
        found = tx.execute(
            sa.select(table.c.epoch, table.c.body)
            .where(*mine, table.c.epoch > self._seen[stage])
            .order_by(table.c.epoch)
        )
        for epoch, body in found:
            sample = EpochSample(
                epoch,
                body["rows_in"],
                body["seconds"],
                body["operator_seconds"],
                body["layer_bytes"],
                time.monotonic(),
            )
            self.progress.epoch_done(stage, sample, body["state_rows"], body["totals"])
            self._seen[stage] = epoch

    def _read_merges(self, tx: sa.Connection) -> None:
        events, table = schema.events, schema.layers
        if self._event == 0:
            self._event = int(tx.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0)
            return
        found = tx.execute(
            sa.select(events.c.seq, events.c.stage, events.c.epoch)
            .where(events.c.seq > self._event, events.c.kind == "merged")
            .order_by(events.c.seq)
        ).all()
        for seq, stage, epoch in found:
            size = tx.execute(
                sa.select(table.c.bytes, table.c.first).where(table.c.stage == stage, table.c.last == epoch)
            ).first()
            sample = MergeSample(size.first if size else 0, epoch, size.bytes if size else 0, 1)
            self.progress.merge_done(stage, sample)
            self._event = seq

    def _read_notices(self, tx: sa.Connection) -> None:
        """What has befallen workers, what stages and sinks were found to have missed, and which go on with other code, since the run began."""
        events = schema.events
        if self._noticed is None:
            self._noticed = int(tx.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0)
        told = sa.select(events).where(events.c.seq > self._noticed, events.c.kind.in_(_TOLD))
        for row in tx.execute(told.order_by(events.c.seq)).all():
            reason = f"stage {row.stage}: {row.reason}" if row.stage else row.reason
            self.progress.notice(Notice(row.at_ms, row.kind, reason))
            self._noticed = row.seq

    def _read_sinks(self, tx: sa.Connection) -> None:
        table = schema.cursors
        found = tx.execute(
            sa.select(table.c.consumer, table.c.processed).where(table.c.consumer.startswith("sink:"))
        )
        for consumer, processed in found:
            if processed > 0:
                self.progress.sink_done(consumer.removeprefix("sink:"), processed - 1)
