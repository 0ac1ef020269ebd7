"""What planning does in a cycle.

Invariants: no epoch reads what is fed back before it is where the producer's policy carries it, so that no replay ever
finds a part of what went round gone; whoever feeds back is not held back by those who read it, so nobody waits for
himself; while much is on its way round, nothing comes in from outside; and beyond a limit the flow stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from holdfast.core.errors import FlowError
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.ports import OUT
from holdfast.flow.prefixes import Input
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.offers import Unit
from holdfast.protocols.admission import is_runaway, keeps_out
from holdfast.runtime.context import Runtime
from holdfast.spark.bind import BoundStage
from holdfast.storage.shipper import settled_epoch


def is_fed_back(plan: FlowPlan, consumer: str, stage: str, port: str) -> bool:
    """Whether what a consumer reads comes back to it."""
    origin = Input("channel", stage, port)
    return any(consumer == f"stage:{reader.name}" and origin in reader.feedback for reader in plan.stages)


def first_fed_back(stage: BoundStage) -> list[Input]:
    """The inputs of a stage in the order in which they are planned: first what comes back."""
    return sorted(stage.spec.inputs, key=lambda origin: origin not in stage.spec.feedback)


def durable(rt: Runtime, tx: sa.Connection, origin: Input, units: Sequence[Unit]) -> list[Unit]:
    """Of epochs that are fed back, those that may be read."""
    settled = _settled(rt, tx, origin)
    return [unit for unit in units if unit.position <= settled]


def reads_durable(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, ranges: Mapping[str, Sequence[int]]
) -> bool:
    """Whether all that a plan takes of what is fed back may be read."""
    return all(ranges[origin.id][1] <= _settled(rt, tx, origin) + 1 for origin in stage.spec.feedback)


def comes_back(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether rows are on their way back to a stage, also those that it may not read yet."""
    return any(
        ledger_inputs.unread_size(tx, [f"stage:{stage.name}"], origin.name, origin.port)[0]
        for origin in stage.spec.feedback
    )


def kept_out(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> frozenset[Input]:
    """The inputs from outside of a stage's cycle that it must not take now: too much is on its way round already."""
    cycle = rt.plan.cycle_of(stage.name)
    if not cycle or not keeps_out(*_on_its_way(rt, tx, cycle)):
        return frozenset()
    return frozenset(i for i in stage.spec.inputs if i.kind == "source" or i.name not in cycle)


def check_bounded(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> None:
    """Stop a flow with a cycle that makes ever more rows, before a stage that feeds back adds to them."""
    names = [loop.name for loop in rt.plan.loops if loop.stage == stage.name]
    if not names:
        return
    rows, size = _on_its_way(rt, tx, rt.plan.cycle_of(stage.name))
    if is_runaway(rows, size):
        raise FlowError(
            f"the cycle of feedback {', '.join(map(repr, names))} does not come to rest: {rows:,} rows ({size:,} bytes) are "
            f"on their way round {', '.join(sorted(rt.plan.cycle_of(stage.name)))}.",
            operation="plan",
            stage=stage.name,
            hint="Feed back only rows that change something, with a filter before close_with; then start in a new work "
            "directory.",
        )


def _settled(rt: Runtime, tx: sa.Connection, origin: Input) -> int:
    """The last epoch of a producer that is where its policy carries it.

    In a region all return together, to a moment at which what was read of it had been fed back: nothing has to be durable.
    """
    if origin.name in rt.region:
        return stage_row(tx, origin.name).head
    return settled_epoch(tx, stage_row(tx, origin.name), rt.route(origin.name))


def _on_its_way(rt: Runtime, tx: sa.Connection, cycle: frozenset[str]) -> tuple[int, int]:
    """Rows and bytes that are fed back in a cycle and that a stage of it has not read."""
    rows = size = 0
    for name in sorted({loop.stage for loop in rt.plan.loops} & cycle):
        readers = [s.name for s in rt.plan.stages if Input("channel", name, OUT) in s.feedback]
        unread = ledger_inputs.unread_size(tx, [f"stage:{reader}" for reader in readers], name, OUT)
        rows, size = rows + unread[0], size + unread[1]
    return rows, size
