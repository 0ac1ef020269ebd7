"""Groups of stages, the workers that may commit for them, and who decides that.

Invariants: a generation is given once, to one group, by whoever holds the flow at that time; a worker that is not
among the members of the newest generation of its group commits nothing. A stage whose primary did not stop cleanly
is orphaned, in the transaction that gives it to another, until that one has recovered it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import FencedError
from holdfast.core.json import Json
from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger, record_event
from holdfast.ledger.process import Process

# Events that a person is told of: a primary was replaced, a member fenced off. The reason of the former begins with the
# group, and a colon.
FAILOVER, EXPELLED = "failover", "expelled"
TOLD = (FAILOVER, EXPELLED)


@dataclass(frozen=True)
class GroupRow:
    """Stages that run in one process, and who may commit for them."""

    group: str
    generation: int
    stages: tuple[str, ...]
    primary: str | None
    members: tuple[str, ...]
    asked: str | None = None  # the primary that somebody wants to see replaced


@dataclass(frozen=True)
class WorkerRow:
    """A process that was started for a group."""

    worker: str
    group: str
    status: str
    process: Process | None
    rehearsals: int
    failure: Json | None
    started_ms: int


def all_groups(tx: Connection) -> dict[str, GroupRow]:
    """Every group, by name."""
    found = tx.execute(sa.select(schema.groups).order_by(schema.groups.c.group))
    return {
        row.group: GroupRow(
            row.group, row.generation, tuple(row.stages), row.primary, tuple(row.members), row.asked
        )
        for row in found
    }


def group_row(tx: Connection, group: str) -> GroupRow | None:
    """A group as it is now, None if there is none of that name."""
    return all_groups(tx).get(group)


def all_workers(tx: Connection) -> list[WorkerRow]:
    """Every worker that is not forgotten, the oldest first."""
    table = schema.workers
    found = tx.execute(sa.select(table).order_by(table.c.started_ms, table.c.worker))
    return [
        WorkerRow(
            row.worker,
            row.group,
            row.status,
            Process(**row.holder) if row.holder else None,
            row.rehearsals,
            row.failure,
            row.started_ms,
        )
        for row in found
    ]


def heads(tx: Connection) -> dict[str, int]:
    """By stage, the last committed epoch."""
    table = schema.stages
    return {stage: int(head) for stage, head in tx.execute(sa.select(table.c.stage, table.c.head))}


def plan_of(tx: Connection) -> Json | None:
    """What the last supervisor was told to run."""
    return tx.execute(sa.select(schema.flow.c.plan)).scalar_one_or_none()


def processes(tx: Connection) -> list[Process]:
    """The processes of all workers."""
    return [row.process for row in all_workers(tx) if row.process]


def is_listed(tx: Connection, worker: str) -> bool:
    """Whether a worker has not been struck off."""
    table = schema.workers
    return tx.execute(sa.select(table.c.worker).where(table.c.worker == worker)).first() is not None


def fence_supervisor(tx: Connection, supervisor: int) -> None:
    """The first statement of whatever a supervisor decides: it changes nothing once another has taken over."""
    table = schema.flow
    changed = tx.execute(
        sa.update(table).where(table.c.supervisor == supervisor).values(supervisor=supervisor)
    )
    if changed.rowcount != 1:
        now = tx.execute(sa.select(table.c.supervisor)).scalar()
        raise FencedError(
            f"supervisor {supervisor} was deposed: supervisor {now} decides about the flow",
            operation="supervise",
            hint="It must stop; the workers go on under the other.",
        )


def lay_out(ledger: Ledger, supervisor: int, plan: Json, groups: Mapping[str, Sequence[str]]) -> None:
    """Make the flow's groups be these. One that is as it was keeps its members; others start without any."""
    with ledger.unfenced_write() as tx:
        fence_supervisor(tx, supervisor)
        before = all_groups(tx)
        kept = {name for name, row in before.items() if tuple(groups.get(name, ())) == row.stages}
        for name in before.keys() - kept:
            _orphan(tx, before[name])
            tx.execute(sa.delete(schema.groups).where(schema.groups.c.group == name))
        for name in groups.keys() - kept:
            generation = _next_generation(tx)
            values = {"group": name, "generation": generation, "stages": list(groups[name])}
            tx.execute(sa.insert(schema.groups).values(**values, primary=None, members=[]))
            _give_stages(tx, generation, groups[name])
        tx.execute(sa.update(schema.flow).values(plan=plan))


def assign(
    ledger: Ledger, supervisor: int, group: str, primary: str, members: Collection[str], reason: str
) -> int:
    """Make a worker the primary of a group, with a new generation: whoever is not a member is fenced off."""
    with ledger.unfenced_write() as tx:
        fence_supervisor(tx, supervisor)
        return _assign(tx, all_groups(tx)[group], primary, members, reason)


def admit(ledger: Ledger, supervisor: int, group: str, worker: str) -> None:
    """Let a hot standby commit beside the primary, if there still is one. Nobody is fenced: the generation stays."""
    table = schema.groups
    with ledger.unfenced_write() as tx:
        fence_supervisor(tx, supervisor)
        row = all_groups(tx)[group]
        if worker not in row.members and row.primary is not None:
            members = [*row.members, worker]
            tx.execute(sa.update(table).where(table.c.group == group).values(members=members))
            reason = f"{worker} computes every epoch too"
            record_event(tx, "admitted", reason, generation=row.generation)


def expel(ledger: Ledger, supervisor: int, group: str, worker: str, reason: str) -> None:
    """Fence off a member that is not the primary: the generation is raised for those that stay."""
    with ledger.unfenced_write() as tx:
        fence_supervisor(tx, supervisor)
        row = all_groups(tx)[group]
        if worker in row.members and row.primary is not None:
            _assign(tx, row, row.primary, [m for m in row.members if m != worker], reason)


def raise_generations(tx: Connection, stages: Collection[str], reason: str) -> None:
    """Fence all that is under way in the groups of these stages; their members stay, under a new generation each."""
    table = schema.groups
    for row in all_groups(tx).values():
        if set(stages) & set(row.stages):
            generation = _next_generation(tx)
            tx.execute(sa.update(table).where(table.c.group == row.group).values(generation=generation))
            _give_stages(tx, generation, row.stages)
            record_event(tx, "fenced", reason, generation=generation)


def merge_into_one(tx: Connection, group: str, generation: int, worker: str) -> None:
    """One group of all stages, run by one process alone; all others are fenced off and forgotten."""
    for row in all_groups(tx).values():
        _orphan(tx, row)
    tx.execute(sa.delete(schema.groups))
    tx.execute(sa.delete(schema.workers))
    names = list(tx.execute(sa.select(schema.stages.c.stage).order_by(schema.stages.c.stage)).scalars())
    values = {"group": group, "generation": generation, "stages": names}
    tx.execute(sa.insert(schema.groups).values(**values, primary=worker, members=[worker]))
    _give_stages(tx, generation, names)


def join_group(tx: Connection, generation: int, stage: str) -> None:
    """A stage that the ledger has not seen before belongs to the group that registers it."""
    table = schema.groups
    row = tx.execute(sa.select(table.c.stages).where(table.c.generation == generation)).one()
    if stage not in row.stages:
        stages = [*row.stages, stage]
        tx.execute(sa.update(table).where(table.c.generation == generation).values(stages=stages))


def vacate(tx: Connection, generation: int) -> None:
    """The primary has stopped cleanly: there is nothing to recover from."""
    table = schema.groups
    tx.execute(sa.update(table).where(table.c.generation == generation).values(primary=None, members=[]))


def leave(ledger: Ledger, generation: int, worker: str, status: str) -> None:
    """A primary says that it has stopped cleanly, because all is done or because it was told to.

    Nobody is a member without a primary, so hot standbys are fenced too, by a new generation like whoever loses a
    place. The worker's status is part of it: one that seems to go on could be made the primary again.
    """
    with ledger.write(generation) as tx:
        row = next(row for row in all_groups(tx).values() if row.generation == generation)
        raised = _next_generation(tx)
        _give_stages(tx, raised, row.stages)
        table, workers = schema.groups, schema.workers
        tx.execute(sa.update(table).where(table.c.group == row.group).values(generation=raised))
        vacate(tx, raised)
        tx.execute(sa.update(workers).where(workers.c.worker == worker).values(status=status))
        record_event(tx, "left", f"{worker} stopped cleanly", generation=raised)


def ask_for_failover(ledger: Ledger, group: str, primary: str, reason: str) -> None:
    """Ask the supervisor to replace a primary; if it is no longer the primary, the wish has no meaning."""
    table = schema.groups
    with ledger.unfenced_write() as tx:
        tx.execute(
            sa.update(table).where(table.c.group == group, table.c.primary == primary).values(asked=primary)
        )
        record_event(tx, "failover asked for", f"{primary}: {reason}")


def orphans(tx: Connection) -> set[str]:
    """Stages whose primary is gone and that nobody has recovered yet."""
    table = schema.stages
    return set(tx.execute(sa.select(table.c.stage).where(table.c.orphaned == 1)).scalars())


def recovered(ledger: Ledger, generation: int, stage: str, how: str) -> None:
    """A successor has done for a stage what its policy asks for."""
    table = schema.stages
    with ledger.write(generation) as tx:
        tx.execute(sa.update(table).where(table.c.stage == stage).values(orphaned=0))
        record_event(tx, "recovered", how, stage=stage, generation=generation)


def add_worker(ledger: Ledger, supervisor: int, worker: str, group: str, reason: str) -> None:
    """Note a worker before its process is started."""
    values = {"worker": worker, "group": group, "status": "starting", "rehearsals": 0}
    with ledger.unfenced_write() as tx:
        fence_supervisor(tx, supervisor)
        tx.execute(sa.insert(schema.workers).values(**values, started_ms=time.time_ns() // 1_000_000))
        record_event(tx, "worker started", f"{worker}: {reason}", generation=supervisor)


def update_worker(ledger: Ledger, worker: str, **values: object) -> None:
    """What a worker says about itself. It is nobody's right but its own, so there is no fence."""
    table = schema.workers
    with ledger.unfenced_write() as tx:
        tx.execute(sa.update(table).where(table.c.worker == worker).values(**values))


def note_process(ledger: Ledger, worker: str, process: Process) -> None:
    """Say which process a worker is: it is known from here on until it has ended, also when the worker is struck off."""
    workers, table = schema.workers, schema.processes
    with ledger.unfenced_write() as tx:
        tx.execute(sa.update(workers).where(workers.c.worker == worker).values(holder=asdict(process)))
        tx.execute(sa.delete(table).where(table.c.worker == worker))
        tx.execute(sa.insert(table).values(worker=worker, holder=asdict(process)))


def noted_processes(tx: Connection) -> dict[str, Process]:
    """By worker, every process that was started and is not known to have ended with all that it started."""
    return {row.worker: Process(**row.holder) for row in tx.execute(sa.select(schema.processes))}


def processes_ended(ledger: Ledger, workers: Collection[str]) -> None:
    """Nothing is left of these processes, nor of what they started."""
    table = schema.processes
    with ledger.unfenced_write() as tx:
        tx.execute(sa.delete(table).where(table.c.worker.in_(list(workers))))


def forget_worker(ledger: Ledger, supervisor: int, worker: str, why: str) -> None:
    """Drop a worker that is gone."""
    with ledger.unfenced_write() as tx:
        fence_supervisor(tx, supervisor)
        tx.execute(sa.delete(schema.workers).where(schema.workers.c.worker == worker))
        record_event(tx, "worker gone", f"{worker}: {why}", generation=supervisor)


def _assign(tx: Connection, row: GroupRow, primary: str, members: Collection[str], reason: str) -> int:
    generation = _next_generation(tx)
    stays = row.primary == primary
    if not stays:
        _orphan(tx, row)
    table = schema.groups
    values = {
        "generation": generation,
        "primary": primary,
        "members": [primary, *sorted({*members} - {primary})],
    }
    tx.execute(sa.update(table).where(table.c.group == row.group).values(**values))
    survivors = {*members, primary} & {*row.members}
    _give_stages(tx, generation, row.stages, kept=row.generation if survivors else None)
    record_event(tx, "promoted" if not stays else EXPELLED, reason, generation=generation)
    if row.primary is not None and not stays:
        record_event(tx, FAILOVER, f"{row.group}: {reason}", generation=generation)
    return generation


def _orphan(tx: Connection, row: GroupRow) -> None:
    if row.primary is not None:
        tx.execute(sa.update(schema.stages).where(schema.stages.c.stage.in_(row.stages)).values(orphaned=1))


def _give_stages(tx: Connection, generation: int, stages: Sequence[str], kept: int | None = None) -> None:
    """Let a generation have stages. What the fenced have under way can no longer commit, so its files may go.

    Attempts of the generation `kept`, of whose members some go on, pass to the new one: however often a group loses
    others, what its survivors have in hand stays theirs.
    """
    table, attempts = schema.stages, schema.attempts
    tx.execute(sa.update(table).where(table.c.stage.in_(list(stages))).values(generation=generation))
    under_way = (attempts.c.stage.in_(list(stages)), attempts.c.status == "open")
    if kept is not None:
        passing = sa.update(attempts).where(*under_way, attempts.c.generation == kept)
        tx.execute(passing.values(generation=generation))
    closing = sa.update(attempts).where(*under_way, attempts.c.generation < generation)
    tx.execute(closing.values(status="closed"))


def _next_generation(tx: Connection) -> int:
    tx.execute(sa.update(schema.flow).values(generation=schema.flow.c.generation + 1))
    return int(tx.execute(sa.select(schema.flow.c.generation)).scalar_one())
