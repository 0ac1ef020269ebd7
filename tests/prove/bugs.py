"""Planted bugs: each breaks one rule of Holdfast in this process and in all that it forks; and what should come of it.

A bug is planted where drivers run. Most only show after a fault: in a run in peace the flow is as good as any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.json import Json
from holdfast.ledger import epochs, holder, schema, skips
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.runtime import recovery, repair, stage_loop
from holdfast.runtime.sink_loop import SinkLoop
from holdfast.sinks import parquet, table
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage import shipper, sweeper

NO_VERDICT = "no verdict"


@dataclass(frozen=True)
class Bug:
    """A way to be wrong, the flow and the fault that show it, and the class of what is then seen."""

    name: str
    plant: Callable[[], None]
    flow: str
    fault: str
    point: str | None
    seen_as: frozenset[str]
    policy: str = "as-written"
    standbys: int = 0


def _plant(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


def ignore_the_record_of_a_table() -> None:
    _plant(table, "admit", lambda last, new, *, start=0: "publish")
    _never_compare_with_the_target()


def move_a_sinks_cursor_first() -> None:
    publish = SinkLoop._publish

    def wrong(self: SinkLoop, epoch: int, branch: int, files: list[dict[str, object]]) -> None:
        rt = self._rt
        ledger_inputs.move_cursor(rt.ledger, rt.generation, self._consumer, self._input, epoch, epoch + 1)
        publish(self, epoch, branch, files)

    _plant(SinkLoop, "_publish", wrong)
    _never_compare_with_the_target()
    _plant(parquet, "admit", lambda last, new, *, start=0: "publish")


def _never_compare_with_the_target() -> None:
    def wrong(self: SinkLoop) -> None:
        with self._rt.ledger.read() as tx:
            row = epochs.stage_row(tx, self._spec.stage)
            position = ledger_inputs.processed(tx, self._consumer, self._input)
        self._sink.open(self._rt.plan.name, row.branch, self._rt.generation, position)

    _plant(SinkLoop, "open", wrong)


def trust_a_ledger_that_was_set_back() -> None:
    _never_compare_with_the_target()


def commit_whoever_asks() -> None:
    def fence(tx: sa.Connection, row: StageRow, **values: int) -> None:
        stages = schema.stages
        tx.execute(sa.update(stages).where(stages.c.stage == row.stage).values(**values))

    def own_row(tx: sa.Connection, stage: str, generation: int) -> StageRow:
        return epochs.stage_row(tx, stage)

    _plant(epochs, "fence_stage", fence)
    _plant(epochs, "_fence_generation", lambda tx, row: None)
    _plant(epochs, "_settle_attempt", lambda tx, attempt: None)
    _plant(Ledger, "refuse_deposed", lambda self, generation: None)
    _plant(Ledger, "write", lambda self, generation: self.unfenced_write())
    for module in (epochs, shipper, sweeper):
        _plant(module, "own_row", own_row)


def move_cursors_before_the_commit() -> None:
    commit_epoch = epochs.commit_epoch

    def wrong(ledger: Ledger, commit: Commit) -> StageRow:
        with ledger.unfenced_write() as tx:
            epochs.move_cursors(tx, commit.stage.stage, commit.epoch, commit.moves)
        crashpoints.reach("commit.after")
        return commit_epoch(ledger, Commit(*_but_moves(commit)))

    _plant(epochs, "commit_epoch", wrong)


def _but_moves(commit: Commit) -> tuple[object, ...]:
    return commit.stage, commit.epoch, commit.attempt, commit.manifest, commit.layer, commit.segments, {}


def rebuild_from_one_epoch_late() -> None:
    open_buckets = recovery.open_buckets

    def wrong(before: Sequence[Sequence[int]], epoch: int, buckets: Sequence[int], floor: int | None) -> list:
        return open_buckets(before, epoch + 1, buckets, floor)

    _plant(stage_loop, "open_buckets", wrong)


def say_less_than_is_skipped() -> None:
    commit_skip = skips.commit_skip

    def wrong(
        ledger: Ledger,
        row: StageRow,
        has_state: bool,
        ranges: Mapping[str, tuple[int, int]],
        manifest: Json,
    ) -> None:
        commit_skip(ledger, row, has_state, ranges, manifest)
        plans = schema.plans
        said = {name: [start, max(start, stop - 1)] for name, (start, stop) in ranges.items()}
        with ledger.unfenced_write() as tx:
            mine = plans.c.stage == row.stage, plans.c.epoch == row.head + 1
            tx.execute(sa.update(plans).where(*mine).values(body={"ranges": said, "rows": 0, "skip": True}))

    _plant(skips, "commit_skip", wrong)


def let_everybody_in() -> None:
    _plant(holder, "_refuse_living", lambda living, by_force: None)
    _plant(holder, "_claim", _claim_from_the_living(holder._claim))


def _claim_from_the_living(claim: Callable[..., int]) -> Callable[..., int]:
    return lambda tx, path, flow_name, by_force, living: claim(tx, path, flow_name, True, None)


def show_rows_that_are_not_on_the_disk() -> None:
    _plant(parquet.atomic, "fsync_file", lambda path: None)


def forget_the_names_of_epochs() -> None:
    fsync_dir = parquet.atomic.fsync_dir

    class Forgetful:
        def __getattr__(self, name: str) -> object:
            return (lambda path: None) if name == "fsync_dir" else getattr(_atomic, name)

    _atomic = parquet.atomic
    assert fsync_dir
    _plant(parquet, "atomic", Forgetful())


def publish_each_epoch_under_a_new_name() -> None:
    """A target that does not refuse a second copy: the record is looked at too late."""

    def wrong(self: ParquetSink, staged: Any, record: SinkRecord) -> None:
        number = len(list(self.path.glob("epoch=*")))
        parquet.atomic.rename_without_replacing(staged, self.path / f"epoch={10_000 + number:08d}")

    _plant(ParquetSink, "_show", wrong)
    _plant(parquet, "admit", lambda last, new, *, start=0: "publish")
    _plant(ParquetSink, "_newest_record", lambda self: None)


def take_a_lost_file_for_restored() -> None:
    _plant(repair, "_brought_back", lambda rt, mirror, group: True)


def begin_a_sink_one_epoch_late() -> None:
    begin = SinkLoop.open

    def wrong(self: SinkLoop) -> None:
        begin(self)
        rt = self._rt
        with rt.ledger.read() as tx:
            head = epochs.stage_row(tx, self._spec.stage).head
            at = ledger_inputs.processed(tx, self._consumer, self._input)
        if 0 < at <= head:
            ledger_inputs.move_cursor(rt.ledger, rt.generation, self._consumer, self._input, at, at + 1)

    _plant(SinkLoop, "open", wrong)


BUGS = (
    Bug("a table's record is not looked at", ignore_the_record_of_a_table, "appended", "kill", "sink.after_record",
        frozenset({"rollback-repeating"})),
    Bug("a sink's cursor moves before the rows are there", move_a_sinks_cursor_first, "passed", "kill",
        "sink.before_stage", frozenset({"rollback-divergent"})),
    Bug("a ledger that was set back is trusted", trust_a_ledger_that_was_set_back, "passed", "setback", None,
        frozenset({NO_VERDICT})),
    Bug("a commit does not look at the generation", commit_whoever_asks, "passed", "zombie", "commit.before",
        frozenset({NO_VERDICT})),
    Bug("the same, among workers with a standby", commit_whoever_asks, "passed", "zombie", "commit.before",
        frozenset({NO_VERDICT, "rollback-divergent"}), standbys=1),
    Bug("cursors move outside the commit", move_cursors_before_the_commit, "passed", "kill", "commit.after",
        frozenset({NO_VERDICT, "rollback-divergent"})),
    Bug("a rebuild starts one epoch late", rebuild_from_one_epoch_late, "windows", "kill", "commit.after",
        frozenset({NO_VERDICT, "rollback-divergent"}), "upstream_backup"),
    Bug("a gap says less than it skips", say_less_than_is_skipped, "passed", "kill", "commit.before",
        frozenset({NO_VERDICT, "rollback-divergent"}), "gap"),
    Bug("a second process is let in", let_everybody_in, "passed", "second", None, frozenset({NO_VERDICT})),
    Bug("rows are shown before they are on the disk", show_rows_that_are_not_on_the_disk, "passed", "power",
        "sink.after_publish", frozenset({NO_VERDICT, "rollback-divergent"})),
    Bug("the names of published epochs are not fsynced", forget_the_names_of_epochs, "passed", "power",
        "sink.after_publish", frozenset({NO_VERDICT, "rollback-divergent"})),
    Bug("an epoch may be published twice", publish_each_epoch_under_a_new_name, "passed", "kill",
        "sink.after_publish", frozenset({"rollback-repeating"})),
    Bug("a mirror is said to hold what it does not", take_a_lost_file_for_restored, "totals", "kill",
        "commit.after", frozenset({NO_VERDICT, "rollback-divergent"}), "passive_standby"),
    Bug("a sink that comes back begins one epoch late", begin_a_sink_one_epoch_late, "passed", "kill",
        "sink.before_stage", frozenset({NO_VERDICT, "rollback-divergent"})),
)  # fmt: skip
