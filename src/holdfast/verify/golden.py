"""The runs in peace: the one that the others are compared with, the gate before it, and the middle to start from.

The determinism gate: a flow whose results change with the number of tasks cannot be compared with anything, and is told
so. Results that change with the size of epochs are a property of the flow, and only reported.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.crashpoints import Orders
from holdfast.flow.endpoints import FilesSource, SourceDescription
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.generate import GenerateSource
from holdfast.flow.lake import DeltaSource
from holdfast.flow.policies import Policy
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.script import Script
from holdfast.spark.keys import even_boundaries
from holdfast.verify.actor import Actor, import_all
from holdfast.verify.classes import Recovery, Seen, Verdict, judge
from holdfast.verify.home import Home
from holdfast.verify.stage import Golden, Plans, Stage, halfway
from holdfast.verify.variants import SNAPSHOTS_EVERY_US

OTHER_TASKS = 3


def golden_run(stage: Stage, plan: FlowPlan, script: Script, name: str = "golden") -> Golden:
    """Run a flow in peace, on its first items."""
    home = stage.home(name)
    watch = home.root / "points"
    modules = stage.run(plan, home, orders=Orders(watch=str(watch)), script=script).returned()
    assert isinstance(modules, list)
    import_all(modules)
    seen = home.root / "seen"
    seen.write_bytes(pickle.dumps(stage.seen(plan, home)))
    return Golden(home, stage.plans(home), _items(stage, plan, home), seen, counted(watch), stage.cuts(home))


@dataclass(frozen=True)
class Middle:
    """A flow on its way through the golden run."""

    home: Home
    until: Mapping[str, int]  # what it has read
    reached: Mapping[str, int]  # how often it comes to each point from there on
    golden: Golden  # what it follows


def of_its_own(stage: Stage, name: str, plan: FlowPlan, golden: Golden) -> Golden:
    """What a flow follows: the same items for all policies, and where it is captured as one, epochs of its own.

    Stages that wait for each other's markers cut their epochs there.
    """
    if not plan.region:
        return golden
    return golden_run(stage, plan, golden.script({}), f"golden-{name}")


def in_the_middle(stage: Stage, name: str, plan: FlowPlan, golden: Golden, more: int = 0) -> Middle:
    """The flow with other policies, shortly before its end, or so many items more before it.

    What is left is short, as every run goes through it: an item to die in, and where it may be skipped another after it.
    Where rows may count twice it is long: that depends on what was under way when a snapshot was taken.
    """
    skips = any(not spec.policy.precise and not spec.policy.repeats for spec in plan.stages)
    repeats = any(spec.policy.repeats for spec in plan.stages)
    until = {
        source: max(1, items // 4 if repeats else items - (2 if skips else 1) - more)
        for source, items in golden.items.items()
    }
    middle = stage.home(f"middle-{name}")
    stage.run(plan, middle, script=golden.script(until, golden.plans), drain=False).returned()
    rest = stage.home(f"rest-{name}", middle)
    watch = rest.root / "points"
    orders = Orders(watch=str(watch))
    # Only up to where a process will die.
    script = golden.script(halfway(until, golden.items) if skips else {}, golden.plans)
    stage.run(plan, rest, orders=orders, script=script, drain=not skips).returned()
    return Middle(middle, until, counted(watch), golden)


def gate(stage: Stage, plan: FlowPlan, golden: Golden) -> tuple[list[Verdict], list[str]]:
    """The same epochs with another number of tasks; then other epochs. What differs by the second, in words."""
    home = stage.home("other-tasks")
    stage.run(plan, home, script=golden.script({}, _with_tasks(golden.plans, OTHER_TASKS))).returned()
    tasks = _compared(stage, plan, home, golden)
    home = stage.home("other-epochs")
    larger, items = _in_larger_epochs(plan, golden.items)
    found = {name: items for name, items in golden.found.items() if not _is_cut_by_epochs(plan.sources[name])}
    stage.run(larger, home, script=Script(items, found=found, versions=golden.versions)).returned()
    epochs = _compared(stage, plan, home, golden)
    words = [
        f"sink {verdict.sink}: other epoch sizes give other rows ({verdict.checked})"
        for verdict in epochs
        if verdict.recovery not in (Recovery.PRECISE, Recovery.REPEATING, Recovery.CONVERGENT)
    ]
    return tasks, words


def counted(watch: Path) -> Mapping[str, int]:
    """How often each point was reached."""
    return Counter(watch.read_text().split()) if watch.exists() else {}


def _compared(stage: Stage, plan: FlowPlan, home: Home, golden: Golden) -> list[Verdict]:
    seen = stage.seen(plan, home)

    def act() -> list[Verdict]:
        expected: dict[str, Seen] = pickle.loads(golden.seen.read_bytes())
        return [judge(expected[name], found) for name, found in seen.items()]

    found = Actor(act, home.log).wait().returned()
    assert isinstance(found, list)
    return found


def _with_tasks(plans: Plans, tasks: int) -> Plans:
    boundaries = even_boundaries(tasks)
    return {
        stage: {epoch: {**body, "boundaries": boundaries} for epoch, body in found.items()}
        for stage, found in plans.items()
    }


def in_small_epochs(plan: FlowPlan, rows: int) -> FlowPlan:
    """The same flow with little in each epoch, and snapshots often: a crash needs some before and after it."""
    sources = {name: _small(source, rows) for name, source in plan.sources.items()}
    stages = tuple(replace(stage, policy=_often(stage.policy)) for stage in plan.stages)
    return replace(plan, sources=sources, stages=stages)


def _often(policy: Policy) -> Policy:
    if policy.snapshots is None:
        return policy
    every_us = min(policy.snapshots.every_us, SNAPSHOTS_EVERY_US)
    return replace(policy, snapshots=replace(policy.snapshots, every_us=every_us, min_pause_us=0))


def _small(source: SourceDescription, rows: int) -> SourceDescription:
    match source:
        case FilesSource(max_files_per_epoch=None) | DeltaSource(max_files_per_epoch=None):
            return replace(source, max_files_per_epoch=1)
        case GenerateSource(per_epoch=per_epoch):
            # And all at once: nobody looks at the rate here.
            return replace(source, per_epoch=min(per_epoch, rows), rate=None)
        case _:
            return source


def _in_larger_epochs(plan: FlowPlan, items: Mapping[str, int]) -> tuple[FlowPlan, dict[str, int]]:
    """The same flow that takes twice as much at a time, and how many items that makes of the same rows."""
    sources, left = {}, dict(items)
    for name, description in plan.sources.items():
        bounds = {
            field: 2 * value
            for field in ("max_files_per_epoch", "max_rows_per_epoch", "per_epoch")
            if isinstance(value := getattr(description, field, None), int)
        }
        if _is_cut_by_epochs(description):
            if items[name] % 2:
                bounds = {}
            else:
                left[name] //= 2
        sources[name] = replace(description, **bounds) if bounds else description  # type: ignore[arg-type]
    return replace(plan, sources=sources), left


def _is_cut_by_epochs(source: SourceDescription) -> bool:
    """Whether an item is what one epoch takes, so that other epochs mean other items."""
    return hasattr(source, "per_epoch")


def _items(stage: Stage, plan: FlowPlan, home: Home) -> dict[str, list[Item]]:
    def act() -> dict[str, list[Item]]:
        with closing(Ledger(home.work)) as ledger, ledger.read() as tx:
            numbers = {name: ledger_inputs.number_of_items(tx, name) for name in plan.sources}
            return {name: ledger_inputs.items(tx, name, 0, number) for name, number in numbers.items()}

    found = Actor(act, home.log).wait().returned()
    assert isinstance(found, dict)
    return found
