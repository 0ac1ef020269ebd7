"""The tracker of substreams in the ledger: reports are applied in the transaction that they are true in.

Invariants: a report is applied once, by the transaction that commits its epoch or moves its sink's cursor, after the
fence; a tracker's state and its heads are one value a shard, so both survive or neither does; a transaction reads and
writes only the shards whose labels its report names. A substream that has ended leaves the tracker at once: whether its
rows may come again is up to its sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, StateSchemaError
from holdfast.core.json import Json
from holdfast.flow.substreams import PUNCTUATION
from holdfast.ledger import schema, substream_account
from holdfast.protocols.message_numbers import Tally, merged
from holdfast.protocols.punctuation import Punctuations
from holdfast.protocols.substreams import Change, Graph, Node, Report, Stage, Substreams, Verdict
from holdfast.protocols.tracker import Tracker, shard_of, split

SINK = "sink:"


@dataclass(frozen=True)
class Incoming:
    """What epochs of a producer carried to one of its readers."""

    messages: Mapping[str, Tally]  # by label
    closed: frozenset[str]  # labels that the producer has closed in them


@dataclass(frozen=True)
class Waiting:
    """Whom the open substreams of a scope wait for."""

    due: Mapping[
        str, tuple[str, ...]
    ]  # by node: labels that a source has to close, or that can end at others
    held: frozenset[str]  # nodes that hold some label


def register_scope(tx: Connection, scope: str, tracker: str, graph: Graph) -> None:
    """Write down who reads labelled rows from whom; what is open was opened under these terms, so they stay."""
    table = schema.substream_scopes
    reads = {name: list(stage.reads) for name, stage in graph.stages.items()}
    known = tx.execute(sa.select(table).where(table.c.scope == scope)).one_or_none()
    if known is None:
        tx.execute(sa.insert(table).values(scope=scope, tracker=tracker, graph=reads))
        return
    if (known.tracker, known.graph) == (tracker, reads):
        return
    _refuse_change(tx, scope, tracker != known.tracker or _stages(known.graph) != _stages(reads))
    tx.execute(sa.update(table).where(table.c.scope == scope).values(tracker=tracker, graph=reads))


def apply_report(tx: Connection, scope: str, report: Report) -> None:
    """Let a tracker know what an epoch did to substreams, once."""
    if not report.changes:
        return
    terms = _terms(tx, scope)
    shards = {shard_of(change.label, limits.SUBSTREAM_SHARDS) for change in report.changes}
    bodies = {shard: _body(tx, scope, shard) for shard in shards}
    last = {shard: _head(body, report) for shard, body in bodies.items() if body is not None}
    for shard, part in split(report, limits.SUBSTREAM_SHARDS, last).items():
        tracker = _tracker(terms, bodies[shard])
        verdict = tracker.apply(part)
        if verdict is Verdict.KNOWN:
            continue
        if verdict is Verdict.EARLY:
            raise _missing(part)
        substream_account.note(tx, scope, tracker, [change.label for change in part.changes])
        _store(tx, scope, shard, tracker, new=bodies[shard] is None)


def incoming(tx: Connection, producer: str, branch: int, start: int, stop: int, reader: str) -> Incoming:
    """What the manifests of a producer's epochs say was sent to a reader."""
    table = schema.manifests
    found = tx.execute(
        sa.select(table.c.body).where(
            table.c.stage == producer,
            table.c.branch == branch,
            table.c.epoch >= start,
            table.c.epoch < stop,
        )
    ).scalars()
    told = [body["substreams"] for body in found if "substreams" in body]
    sent = [
        {
            label: Tally(int(number, 16), count)
            for label, (number, count) in one["sent"].get(reader, {}).items()
        }
        for one in told
    ]
    changes = [change for one in told for change in one["report"]["changes"]]
    return Incoming(merged(sent), frozenset(change["label"] for change in changes if change.get("closed")))


def waiting(tx: Connection, scope: str) -> Waiting:
    """Whom substreams wait for, told without reading what the tracker knows."""
    table = schema.substream_shards
    due: dict[str, list[str]] = {}
    held: set[str] = set()
    for body in tx.execute(sa.select(table.c.waiting).where(table.c.scope == scope)).scalars():
        for node, labels in body["due"].items():
            due.setdefault(node, []).extend(labels)
        held.update(body["held"])
    return Waiting({node: tuple(sorted(labels)) for node, labels in due.items()}, frozenset(held))


def stored(tx: Connection, scope: str) -> dict[int, Json]:
    """All that a tracker knows, by shard."""
    table = schema.substream_shards
    found = tx.execute(sa.select(table.c.shard, table.c.body).where(table.c.scope == scope))
    return {shard: body for shard, body in found}


def trackers(tx: Connection, scope: str) -> list[Substreams]:
    """The shards of a tracker, to be asked."""
    terms = _terms(tx, scope)
    return [_tracker(terms, body) for body in stored(tx, scope).values()]


def report_of_sink(tx: Connection, scope: str, sink: str, producer: str, branch: int, epoch: int) -> None:
    """Let the tracker know that a sink has published an epoch.

    A sink has nothing to emit, so what it has read the end of it closes at once: by a report of its own, as no node
    closes what it is only just reading the end of. Hence two numbers an epoch.
    """
    came = incoming(tx, producer, branch, epoch, epoch + 1, sink)
    if not _punctuates(tx, scope):
        read = [Change(label, sent.number, consumed=sent.messages) for label, sent in came.messages.items()]
        apply_report(tx, scope, Report(branch, Node(sink), 2 * epoch, 2 * epoch - 1, tuple(read)))
        return
    ends = [Change(label, ends=(Node(producer),)) for label in sorted(came.closed)]
    apply_report(tx, scope, Report(branch, Node(sink), 2 * epoch, 2 * epoch - 1, tuple(ends)))
    closed = [Change(label, closed=True) for label in sorted(came.closed)]
    apply_report(tx, scope, Report(branch, Node(sink), 2 * epoch + 1, 2 * epoch, tuple(closed)))


def _terms(tx: Connection, scope: str) -> Row[tuple[str, str, Json]]:
    table = schema.substream_scopes
    return tx.execute(sa.select(table).where(table.c.scope == scope)).one()


def _punctuates(tx: Connection, scope: str) -> bool:
    return bool(_terms(tx, scope).tracker == PUNCTUATION)


def _stages(graph: Mapping[str, Sequence[str]]) -> Json:
    return {node: list(reads) for node, reads in graph.items() if not node.startswith(SINK)}


def _refuse_change(tx: Connection, scope: str, of_stages: bool) -> None:
    """Sinks may come and go while nothing is open; a stage would read labelled rows that nobody sent to it."""
    still_open, begun = substream_account.numbers(tx, scope)
    if still_open or (of_stages and begun):
        raise StateSchemaError(
            f"the stages and sinks that substreams pass behind {scope!r}, or their tracker, have changed"
            f" while {still_open} are open",
            operation="register",
            stage=scope,
            hint="Bring the old flow back and run it with --drain; then sinks may change. For other stages or another"
            " tracker, start in a new work directory, or give the labelling stage another name with .named(...).",
        )


def _body(tx: Connection, scope: str, shard: int) -> Json | None:
    table = schema.substream_shards
    mine = (table.c.scope == scope, table.c.shard == shard)
    return tx.execute(sa.select(table.c.body).where(*mine)).scalar_one_or_none()


def _head(body: Json, report: Report) -> int:
    """The epoch of the last report of a node that a shard was told of."""
    mine = [report.branch, *report.node]
    return next((epoch for *whose, epoch in body["heads"] if whose == mine), -1)


def _tracker(terms: Row[tuple[str, str, Json]], body: Json | None) -> Tracker | Punctuations:
    graph = Graph({node: Stage(tuple(reads)) for node, reads in terms.graph.items()})
    kind = Punctuations if terms.tracker == PUNCTUATION else Tracker
    return kind(graph) if body is None else kind.from_json(graph, body)


def _store(tx: Connection, scope: str, shard: int, tracker: Substreams, *, new: bool) -> None:
    table = schema.substream_shards
    values = {"body": tracker.to_json(), "waiting": _waiting(tracker)}
    if new:
        tx.execute(sa.insert(table).values(scope=scope, shard=shard, **values))
    else:
        mine = (table.c.scope == scope, table.c.shard == shard)
        tx.execute(sa.update(table).where(*mine).values(**values))


def _waiting(tracker: Substreams) -> Json:
    due: dict[str, list[str]] = {}
    held: set[str] = set()
    for label in tracker.open_labels():
        why = tracker.waits_for(label)
        for node in (*why.sources, *sorted(tracker.due(label))):
            due.setdefault(node.stage, []).append(label)
        held.update(node.stage for node in why.holders)
    return {"due": due, "held": sorted(held)}


def _missing(report: Report) -> HoldfastError:
    return HoldfastError(
        f"a report of {report.node} on substreams is missing before this one",
        operation="track substreams",
        stage=report.node.stage,
        epoch=report.epoch,
    )
