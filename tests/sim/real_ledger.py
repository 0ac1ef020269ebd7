"""The product's own ledger behind the simulation's interface: on SQLite, or in PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from holdfast.ledger import epochs, groups, holder, inputs, schema, starts
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.offers import Offered, offered_epochs, offered_items
from holdfast.ledger.process import Process
from registered import register_stage
from sim.store import FLOW, SOURCE, Backlog, Chain, Manifest, Offer, StageFact, View

T = TypeVar("T")


class RealLedger:
    """A ledger, where the work directory says that it is.

    `eye` is a connection of a driver's to its database: the checker looks after every write, past SQLAlchemy, so that
    it costs little.
    """

    def __init__(self, chain: Chain, work_dir: Path, eye: Any = None) -> None:
        self._chain = chain
        self._ledger = Ledger(work_dir)
        # Processes die here, the host does not: waiting for the disk would show nothing.
        self._ledger.engine.dispose()
        sa.event.listen(self._ledger.engine, "connect", _do_not_sync)
        self._eye = eye or sqlite3.connect(work_dir / "ledger.db", isolation_level=None)
        # Processes look far more often than anything changes, and after every write the checker asks for a view.
        self._known: dict[object, object] = {}

    def close(self) -> None:
        self._eye.close()
        self._ledger.engine.dispose()

    def view(self) -> View:
        self._known.clear()
        return self._view()

    def _view(self) -> View:
        self._eye.execute("BEGIN")
        found = self._eye.execute("SELECT generation FROM flow").fetchone()
        rows = self._eye.execute('SELECT "group", generation, stages, "primary", members FROM groups')
        named = {
            row[0]: GroupRow(row[0], row[1], tuple(_parsed(row[2])), row[3], tuple(_parsed(row[4])))
            for row in rows
        }
        heads = self._eye.execute("SELECT stage, head, generation, orphaned FROM stages")
        facts = {row[0]: StageFact(row[1], row[2], row[3] == 1) for row in heads}
        cursors = self._eye.execute("SELECT consumer, input, processed FROM cursors")
        moved = {(row[0], row[1]): row[2] for row in cursors}
        view = View(found[0] if found else 0, named, facts, self._manifests(), moved)
        self._eye.execute("COMMIT")
        return view

    def _manifests(self) -> dict[str, list[Manifest]]:
        found: dict[str, list[Manifest]] = {stage: [] for stage in self._chain.stages}
        rows = self._eye.execute("SELECT stage, epoch, attempt, body FROM manifests ORDER BY epoch")
        for stage, epoch, attempt, body in rows:
            found[stage].append(Manifest(epoch, attempt, *_parsed(body)["reads"]))
        return found

    # What a supervisor writes and reads.

    def supervise(self) -> int:
        return holder.supervise(self._ledger, FLOW, by_force=True)

    def lay_out(self, supervisor: int, named: Mapping[str, Sequence[str]]) -> None:
        groups.lay_out(self._ledger, supervisor, {}, named)

    def assign(self, supervisor: int, group: str, primary: str, members: Collection[str], reason: str) -> int:
        return groups.assign(self._ledger, supervisor, group, primary, members, reason)

    def admit(self, supervisor: int, group: str, worker: str) -> None:
        groups.admit(self._ledger, supervisor, group, worker)

    def expel(self, supervisor: int, group: str, worker: str, reason: str) -> None:
        groups.expel(self._ledger, supervisor, group, worker, reason)

    def add_worker(self, supervisor: int, worker: str, group: str) -> None:
        groups.add_worker(self._ledger, supervisor, worker, group, "simulated")

    def forget_worker(self, supervisor: int, worker: str, why: str) -> None:
        groups.forget_worker(self._ledger, supervisor, worker, why)

    def groups_and_workers(self) -> tuple[dict[str, GroupRow], list[WorkerRow]]:
        return self._once("groups", self._groups_and_workers)

    def _groups_and_workers(self) -> tuple[dict[str, GroupRow], list[WorkerRow]]:
        with self._ledger.read() as tx:
            return groups.all_groups(tx), groups.all_workers(tx)

    # What a worker writes and reads about itself and its group.

    def update_worker(self, worker: str, status: str, pid: int) -> None:
        groups.note_process(self._ledger, worker, Process("sim", pid, ""))
        groups.update_worker(self._ledger, worker, status=status)

    def standing(self, group: str, worker: str) -> tuple[GroupRow, bool]:
        named, workers = self.groups_and_workers()
        return named[group], any(row.worker == worker for row in workers)

    def register(self, generation: int, stage: str) -> None:
        register_stage(self._ledger, generation, stage, None, [self._chain.input_of[stage]])
        if stage == self._chain.last:
            with self._ledger.write(generation) as tx:
                starts.add_cursor(tx, "sink:out", self._chain.sink_input, 0)

    def orphans(self) -> set[str]:
        with self._ledger.read() as tx:
            return groups.orphans(tx)

    def recovered(self, generation: int, stage: str) -> None:
        groups.recovered(self._ledger, generation, stage, "simulated")

    def leave(self, generation: int, worker: str, status: str) -> None:
        groups.leave(self._ledger, generation, worker, status)

    def refuse_deposed(self, generation: int) -> None:
        self._ledger.refuse_deposed(generation)

    # What a worker writes and reads about epochs.

    def add_items(self, generation: int, known: int, offered: int) -> None:
        # Some that are known already, as a directory listing has them again.
        found = [
            inputs.Item(str(at), self._chain.rows(SOURCE, at), 1, {})
            for at in range(max(0, known - 2), offered)
        ]
        inputs.add_items(self._ledger, generation, {SOURCE: found})

    def offer(self, stage: str, generation: int) -> Offer | None:
        return self._once((stage, generation), lambda: self._offer(stage, generation))

    def _offer(self, stage: str, generation: int) -> Offer | None:
        with self._ledger.read() as tx:
            if stage not in _known_stages(tx):
                return None
            row = epochs.own_row(tx, stage, generation)
            plan = epochs.open_plan(tx, row)
            start = inputs.processed(tx, f"stage:{stage}", self._chain.input_of[stage])
            offered = self._offered(tx, stage, start)
            number = offered.stop - start, offered.empty_until - start
            return Offer(row, _reads(plan["reads"]) if plan else None, start, *number)

    def own_place(self, stage: str) -> tuple[GroupRow, StageRow]:
        with self._ledger.read() as tx:
            return groups.all_groups(tx)[self._chain.group_of[stage]], epochs.stage_row(tx, stage)

    def pass_over(self, row: StageRow, reads: tuple[int, int]) -> None:
        epochs.pass_over(self._ledger, row, {self._chain.input_of[row.stage]: reads})

    def record_plan(self, row: StageRow, reads: tuple[int, int]) -> tuple[StageRow, str]:
        return epochs.record_plan(self._ledger, row, {"reads": reads})

    def open_attempt(self, row: StageRow) -> str:
        return epochs.open_attempt(self._ledger, row, "epoch", row.head + 1)

    def close_attempt(self, row: StageRow, attempt: str) -> None:
        epochs.close_attempt(self._ledger, row, attempt)

    def commit(self, row: StageRow, attempt: str, reads: tuple[int, int]) -> None:
        rows = self._chain.rows(row.stage, row.head + 1)
        manifest = {"reads": reads, "rows_out": {"out": rows}}
        moves = {self._chain.input_of[row.stage]: reads}
        segments = {"out": {"rows": rows, "bytes": 1, "files": []}} if rows else {}
        epochs.commit_epoch(self._ledger, Commit(row, row.head + 1, attempt, manifest, None, segments, moves))

    def sink_place(self) -> tuple[int, int]:
        with self._ledger.read() as tx:
            head = epochs.stage_row(tx, self._chain.last).head
            return inputs.processed(tx, "sink:out", self._chain.sink_input), head

    def move_sink(self, generation: int, epoch: int) -> None:
        inputs.move_cursor(self._ledger, generation, "sink:out", self._chain.sink_input, epoch, epoch + 1)

    def backlog(self) -> Backlog:
        return self._once("backlog", self._backlog)

    def _backlog(self) -> Backlog:
        view = self._view()
        with self._ledger.read() as tx:
            unread = {
                stage: self._unread(tx, stage, view.cursors.get(self._chain.cursor_of[stage], 0))
                for stage in self._chain.stages
            }
            planned = [name for name in view.stages if epochs.open_plan(tx, epochs.stage_row(tx, name))]
            items = len(inputs.known_identities(tx, SOURCE))
        last = view.stages.get(self._chain.last)
        published = view.cursors.get(self._chain.sink_cursor, 0)
        return Backlog(items, unread, planned, (last.head + 1 if last else 0) - published)

    def _once(self, what: object, read: Callable[[], T]) -> T:
        if what not in self._known:
            self._known[what] = read()
        return cast(T, self._known[what])

    def _unread(self, tx: sa.Connection, stage: str, start: int) -> int:
        return self._offered(tx, stage, start).stop - start

    def _offered(self, tx: sa.Connection, stage: str, start: int) -> Offered:
        before = self._chain.before.get(stage)
        if before is None:
            return offered_items(tx, SOURCE, start)
        if before not in _known_stages(tx):
            return Offered(start, start, ())
        return offered_epochs(tx, before, "out", start)


def _reads(found: Sequence[int]) -> tuple[int, int]:
    return found[0], found[1]


def _parsed(body: Any) -> Any:
    """JSON, which some drivers have parsed already."""
    return json.loads(body) if isinstance(body, str) else body


def _do_not_sync(connection: Any, _: object) -> None:
    here = isinstance(connection, sqlite3.Connection)
    connection.execute("PRAGMA synchronous=OFF" if here else "SET synchronous_commit = off")
    connection.commit()


def _known_stages(tx: sa.Connection) -> set[str]:
    return set(tx.execute(sa.select(schema.stages.c.stage)).scalars())
