"""What every sink promises: the rows of an epoch become visible once, and in the order of the epochs.

A sink keeps its `SinkRecord` in the target, with the data, because only the target knows what its readers
saw. `admit` decides from that record alone; it does no I/O, so that every target decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

from holdfast.core.errors import FencedError, SinkError

# How a flow and its targets are started over; whoever knows the work directory names it instead of DIR.
RESET = "`holdfast reset FLOW --work-dir DIR --targets`"


@dataclass(frozen=True)
class SinkRecord:
    """Which output a target holds last, and which generation brought it."""

    flow: str
    branch: int
    epoch: int
    revision: int
    generation: int

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """What was published; who brought it makes no difference to a reader."""
        return self.flow, self.branch, self.epoch, self.revision

    def to_json(self) -> dict[str, str | int]:
        """The record as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> SinkRecord:
        """Read what `to_json` wrote, in this version or in a later one that added fields."""
        flow = fields.get("flow")
        if not isinstance(flow, str):
            raise SinkError(f"a sink record without a flow: {dict(fields)}", operation="read record")
        branch, epoch, revision, generation = (
            _number(fields, name) for name in ("branch", "epoch", "revision", "generation")
        )
        return cls(flow, branch, epoch, revision, generation)


@runtime_checkable
class Sink(Protocol):
    """A target that takes the epochs of one stage, each once.

    It is made, or says by a PlanError why it cannot be, before anything runs.
    """

    @property
    def place(self) -> object | None:
        """What no other sink may have as its target too; None where there is no such thing."""
        ...

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """Fence every older generation in the target, then say what is the last record found there.

        `start` is the first epoch that the sink will be given if the target has no record. What was
        stored when the target was first opened goes before it.
        """
        ...

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Make the rows of one epoch visible, once.

        Only the successor of the last record is accepted, from no older generation.
        """
        ...

    def close(self) -> None:
        """Let go of the target; the record stays in it."""
        ...


class Opened(Protocol):
    """An opening of a target: what it was opened by and for."""

    @property
    def flow(self) -> str: ...
    @property
    def branch(self) -> int: ...
    @property
    def generation(self) -> int: ...


Opening = TypeVar("Opening", bound=Opened)


def opened_for(opening: Opening | None, record: SinkRecord, where: object) -> Opening:
    """The opening, if it was made for what the record says."""
    if opening is None:
        raise SinkError(f"{where} is not open", operation="publish", epoch=record.epoch)
    if record.flow != opening.flow:
        raise other_flow(opening.flow, record.flow)
    if record.generation != opening.generation or record.branch > opening.branch:
        raise _refused(
            record,
            f"{where} was opened by generation {opening.generation} for branch {opening.branch}; "
            f"the epoch is of generation {record.generation} and branch {record.branch}",
            "Open the sink again after a fail-over or a rollback.",
        )
    return opening


def admit(last: SinkRecord | None, new: SinkRecord, *, start: int = 0) -> Literal["publish", "already"]:
    """Decide what to do with an epoch, given the last record of the target.

    Whether a successor of another branch shares its history up to `last` is in the ledger, not in the
    target: the runtime asks there before it offers the first epoch of a new branch.
    """
    if last is None:
        return _admit_first(new, start)
    if last.flow != new.flow:
        raise other_flow(last.flow, new.flow)
    if last.generation > new.generation:
        raise FencedError(
            f"generation {new.generation} was replaced by generation {last.generation}, "
            f"which has published epoch {last.epoch}",
            operation="publish",
            epoch=new.epoch,
        )
    if last.identity == new.identity:
        return "already"
    if new.epoch != last.epoch + 1:
        raise _not_the_successor(last, new)
    if new.branch < last.branch:
        raise _refused(
            new,
            f"the target has left branch {new.branch}: its last record, epoch {last.epoch}, is of branch {last.branch}",
            "Publish the newest branch, or give the old one a target of its own.",
        )
    return "publish"


def other_flow(owner: str, intruder: str) -> SinkError:
    """The error for a target that belongs to another flow."""
    return SinkError(
        f"the target belongs to the flow {owner!r}, not to {intruder!r}",
        operation="admit",
        hint="Give every flow a target of its own.",
    )


def _number(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int):
        raise SinkError(
            f"a sink record without a whole number {name!r}: {dict(fields)}", operation="read record"
        )
    return value


def _admit_first(new: SinkRecord, start: int) -> Literal["publish"]:
    if new.epoch == start:
        return "publish"
    raise _refused(
        new,
        f"the target holds nothing yet and waits for epoch {start}, not for epoch {new.epoch}",
        f"If rows were published before, the target was emptied or replaced: restore it, or start over with {RESET}.",
    )


def _not_the_successor(last: SinkRecord, new: SinkRecord) -> SinkError:
    if new.epoch > last.epoch:
        return _refused(
            new,
            f"the target ends at epoch {last.epoch}, so epoch {new.epoch} would leave a gap",
            f"The target is behind the ledger: restore it, or start over with {RESET}.",
        )
    if new.branch != last.branch:
        return _refused(
            new,
            f"branch {new.branch} would reuse the number {new.epoch}: "
            f"the target was published up to epoch {last.epoch} by branch {last.branch}",
            "Readers have seen the undone rows; give the new branch a target of its own.",
        )
    if new.epoch == last.epoch:
        return _refused(
            new,
            f"revision {new.revision} of epoch {new.epoch} cannot replace the published revision {last.revision}",
            "Publish only final epochs to this sink.",
        )
    return _refused(
        new,
        f"the target is ahead, at epoch {last.epoch}; an older epoch is not skipped by its number alone",
        f"Was the ledger set back? Restore the newer one, or start over with {RESET}.",
    )


def _refused(new: SinkRecord, message: str, hint: str) -> SinkError:
    return SinkError(message, operation="publish", epoch=new.epoch, hint=hint)
