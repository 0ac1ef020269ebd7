"""A target that prepares and commits: for transactions that outlive the process that began them.

An epoch is prepared under a token, the decision to commit it is written into the ledger, then it is committed. Who
comes after a crash asks the target what it holds in doubt: what was decided is committed, the rest is aborted. What the
target has lost meanwhile is prepared again, as its segments stay until the target has confirmed.

Invariants: nothing is committed without a decision, and only the generation that the ledger knows can decide; a token
is never used twice, so nobody commits what another has prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from holdfast.core import crashpoints, limits
from holdfast.core.errors import HoldfastError, SinkError
from holdfast.core.ids import new_attempt_id
from holdfast.ledger import decisions
from holdfast.ledger.decisions import Decision
from holdfast.ledger.ledger import Ledger
from holdfast.sinks import reading
from holdfast.sinks.contract import SinkRecord, admit


class TwoPhase(ABC):
    """What a target of the user's must do. An error of any kind means that the call may or may not have had its effect."""

    @abstractmethod
    def prepare(self, token: str, epoch: int, rows: pa.RecordBatchReader) -> None:
        """Take the rows of an epoch so that a commit cannot fail any more, and show them to nobody."""

    @abstractmethod
    def commit(self, token: str) -> bool:
        """Show what was prepared; True if it is shown, now or since an earlier call; False if the target has lost it."""

    @abstractmethod
    def abort(self, token: str) -> None:
        """Drop what was prepared, if it is there."""

    @abstractmethod
    def in_doubt(self, prefix: str) -> Iterable[str]:
        """The tokens with a prefix that are prepared and neither committed nor aborted."""


class TwoPhaseSink:
    """Publishes each epoch by a decision in the ledger."""

    def __init__(self, target: TwoPhase, name: str, schema: pa.Schema, ledger: Ledger) -> None:
        self._target = target
        self._name = name
        self._schema = schema
        self._ledger = ledger
        self._prefix = ""
        self._start = 0
        self._last: SinkRecord | None = None
        self._generation: int | None = None

    @property
    def place(self) -> None:
        """Only its author knows."""
        return None

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """Settle what a predecessor left in doubt, then say what is the last record."""
        self._ledger.refuse_deposed(generation)
        self._generation, self._prefix = None, f"{flow}:{self._name}:"
        with self._ledger.read() as tx:
            decided = decisions.last_of(tx, self._name)
        self._last = SinkRecord(flow, branch, start - 1, 0, generation) if start else None
        with self._explained("settle"):
            for token in self._target.in_doubt(self._prefix):
                if decided is None or token != decided.token:
                    self._target.abort(token)
            if decided is not None and self._settled(decided, generation):
                self._last = SinkRecord(
                    flow, decided.branch, decided.epoch, decided.revision, decided.generation
                )
        self._start, self._generation = start, generation
        return self._last

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Prepare, decide, commit; an epoch without rows is only decided."""
        if self._generation is None:
            raise SinkError(f"sink {self._name!r} is not open", operation="publish", epoch=record.epoch)
        if admit(self._last, record, start=self._start) == "already":
            return
        crashpoints.reach("sink.before_stage")
        for _ in range(limits.SINK_TRIES_MAX):
            decision = self._prepared(record, segments)
            crashpoints.reach("sink.after_stage")
            decisions.decide(self._ledger, record.generation, self._name, decision)
            crashpoints.reach("sink.after_publish")
            with self._explained("commit", record.epoch):
                if self._settled(decision, record.generation):
                    crashpoints.reach("sink.after_record")
                    self._last = record
                    return
        raise SinkError(
            f"the target of sink {self._name!r} lost what it had prepared {limits.SINK_TRIES_MAX} times",
            operation="commit",
            epoch=record.epoch,
            hint="Nothing was lost: the epoch is prepared again in the next run. Does the target keep prepared "
            "transactions at all, and for long enough?",
        )

    def close(self) -> None:
        """What is prepared stays as it is."""
        self._generation = None

    def _prepared(self, record: SinkRecord, segments: Sequence[Path]) -> Decision:
        token = f"{self._prefix}{record.branch}:{record.epoch}:{record.revision}:{new_attempt_id()}"
        rows = pa.RecordBatchReader.from_batches(self._schema, reading.batches(segments, self._schema))
        with self._explained("prepare", record.epoch):
            self._target.prepare(token, record.epoch, rows)
        return Decision(record.branch, record.epoch, record.revision, record.generation, token)

    def _settled(self, decision: Decision, generation: int) -> bool:
        """Whether what was decided is shown now; what the target has lost is to be prepared again."""
        if self._target.commit(decision.token):
            return True
        decisions.withdraw(self._ledger, generation, self._name)
        return False

    @contextmanager
    def _explained(self, operation: str, epoch: int | None = None) -> Iterator[None]:
        """An error of the target's code, in our words."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            raise SinkError(
                f"the target of sink {self._name!r} raised {type(error).__name__}: {error}",
                operation=operation,
                epoch=epoch,
                hint="Nothing was lost: what is in doubt is settled, and the epoch offered again, in the next run.",
            ) from error
