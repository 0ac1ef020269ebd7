"""What can go wrong, split by whose fault it is.

    HoldfastError
    ├── FlowError              what the user wrote
    │   ├── PlanError          it cannot be planned, or cannot hold what it promises
    │   ├── FlowImportError    the flow's file misbehaves while it is imported
    │   └── CodeError          a function of the flow raised an error while it ran
    ├── InputError             a source's data is missing, changed or malformed
    ├── StateSchemaError       the stored state was made by another schema, key or operator
    ├── FencedError            a newer generation owns the flow; this process must stop
    ├── LedgerError            the ledger cannot be read or written, or belongs to another flow
    ├── StorageError           a file of ours is lost, torn or cannot be written
    └── SinkError              a target refuses, or is ahead of what the ledger knows

Every error says which operation failed, on which stage and epoch, whether it heals by itself, and what
to do about it. Nothing in Holdfast logs an error and carries on.
"""

from __future__ import annotations

from holdfast.core.json import Json


class HoldfastError(Exception):
    """Base of all errors that Holdfast raises on purpose."""

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        stage: str | None = None,
        epoch: int | None = None,
        heals: bool = False,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.stage = stage
        self.epoch = epoch
        self.heals = heals
        self.hint = hint
        self.told: Json | None = None  # of an error in another process: what that process said of it

    def at(self, *, stage: str, epoch: int | None = None) -> HoldfastError:
        """Fill in where it happened, for errors raised by code that cannot know."""
        self.stage = self.stage or stage
        self.epoch = self.epoch if self.epoch is not None else epoch
        return self

    def __str__(self) -> str:
        where = [f"stage {self.stage!r}"] if self.stage else []
        where += [f"epoch {self.epoch}"] if self.epoch is not None else []
        where += [self.operation] if self.operation else []
        prefix = f"[{', '.join(where)}] " if where else ""
        outlook = " It heals by itself." if self.heals else ""
        hint = f" {self.hint}" if self.hint else ""
        return f"{prefix}{self.message}{outlook}{hint}"


class FlowError(HoldfastError):
    """What the user wrote cannot work."""


class PlanError(FlowError):
    """The flow cannot be planned as it is written."""


class FlowImportError(FlowError):
    """The flow's file cannot be imported, or runs a flow while it is imported."""


class CodeError(FlowError):
    """A function of the flow raised an error: which one, and where in the user's own files."""

    trace: str = ""  # its traceback, without the frames of Spark and Holdfast
    line: str | None = None  # FILE:LINE


class InputError(HoldfastError):
    """A source's data is missing, changed or malformed."""


class StateSchemaError(HoldfastError):
    """The stored state was made by another schema, key or operator of the same name."""


class FencedError(HoldfastError):
    """A newer generation owns the flow: nothing of this process is visible any more."""


class LedgerError(HoldfastError):
    """The ledger cannot be read or written, or is not this flow's."""


class StorageError(HoldfastError):
    """A file of Holdfast's own is lost, torn or cannot be written."""


class SinkError(HoldfastError):
    """A target refuses what it is given, or is ahead of what the ledger knows."""
