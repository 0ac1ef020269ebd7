"""What is really so in a simulation of snapshots: every row that was sent, received, carried or lost.

It knows nothing of markers, parts that are due, or ceilings. It is told what was committed, captured, returned to and
published, and compares rows: those that a state has seen with those that its inputs hold up to where it reads on.

What is verified: a stage reads every row of its inputs once and in order; of a snapshot that is committed, no state has
seen a row that was not sent before the cut, and every row that was sent before it is in a state, in the state of a
channel or has left, in files that survive a loss of power; after a return the same holds of where the stages stand, and
nothing that is undone has left the region; in `at_least_once` a state may have seen more than it says, and exactly that
is what it will see again; no replaced process changes anything; in the end the targets hold what a run without failures
would have brought, and nothing else but such repeats.
What is not: how fast anything is, the contents of state beyond which rows it has seen, and merges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.protocols.snapshots import Part
from sim.checker import Violation
from sim.snapshot_schedules import Graph, Row, channel

Rows = Counter[Row]


@dataclass
class File:
    """What an attempt wrote: the rows that it hands on, and what it added to the state."""

    rows: tuple[Row, ...]
    durable: bool = False
    there: bool = True


@dataclass(frozen=True)
class Done:
    """A stage after an epoch that it committed."""

    file: str
    reads: Mapping[str, tuple[int, int]]
    seen: Rows  # by its state, since the beginning
    repeats: Rows  # of these, what it has seen of epochs that were undone


@dataclass
class Line:
    """The epochs of a stage that stand, and where it reads on."""

    epochs: list[Done] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)

    def after(self, epoch: int) -> Done:
        return self.epochs[epoch] if epoch >= 0 else Done("", {}, Counter(), Counter())

    def read_until(self, epoch: int, name: str) -> int:
        """Where the state at an epoch has read an input up to."""
        return self.after(epoch).reads.get(name, (0, 0))[1]


class Truth:
    """All rows and files of a schedule."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.items: dict[str, list[Row]] = {source: [] for source in graph.sources}
        self.files: dict[str, File] = {}
        self.lines = {stage: Line([], dict.fromkeys(inputs, 0)) for stage, inputs in graph.inputs.items()}
        self.left: dict[str, list[str]] = {sink: [] for sink in graph.sinks}  # by sink, the files it shows
        self.repeated: Rows = Counter()  # all that was ever seen twice
        self._trimmed_below = dict.fromkeys(graph.inputs, 0)

    # What happens.

    def written(self, path: str, stage: str, rows: Iterable[Row]) -> None:
        """An attempt has written its files; outside the region they are durable, which is not in question here."""
        made = tuple(out for row in rows for out in self._graph.handed_on(stage, row))
        self.files[path] = File(made, durable=stage not in self._graph.inside)

    def are_there(self, paths: Iterable[str]) -> bool:
        """Whether files can be read."""
        return all(path in self.files and self.files[path].there for path in paths)

    def read(self, paths: Iterable[str]) -> list[Row]:
        """The rows of files that the ledger names."""
        for path in paths:
            _ensure(self.are_there([path]), f"{path} is named, needed and not there")
        return [row for path in paths for row in self.files[path].rows]

    def committed(
        self, stage: str, epoch: int, path: str, reads: Mapping[str, tuple[int, int]], rows: list[Row]
    ) -> None:
        """An epoch was accepted; `rows` is what it has read."""
        line = self.lines[stage]
        _ensure(
            epoch == len(line.epochs), f"{stage} has committed epoch {epoch} after {len(line.epochs) - 1}"
        )
        offered: Rows = Counter()
        for name, (start, stop) in reads.items():
            at = line.positions[name]
            _ensure(start == at, f"{stage} epoch {epoch} reads {name} from {start}, and {at} comes next")
            offered.update(self._between(stage, name, start, stop))
            line.positions[name] = stop
        _ensure(Counter(rows) == offered, f"{stage} epoch {epoch} has read {rows}, not {dict(offered)}")
        before = line.after(epoch - 1)
        line.epochs.append(Done(path, reads, before.seen + offered, before.repeats))

    def passed_over(self, stage: str, ranges: Mapping[str, tuple[int, int]]) -> None:
        """A stage has left epochs behind without reading them."""
        line = self.lines[stage]
        for name, (start, stop) in ranges.items():
            at = line.positions[name]
            _ensure(start == at, f"{stage} passes over {name} from {start}, and {at} comes next")
            missed = self._between(stage, name, start, stop)
            _ensure(not missed, f"{stage} passes over {dict(missed)} in {name}")
            line.positions[name] = stop

    def carried(self, paths: Iterable[str]) -> None:
        """Files are now where they survive."""
        for path in paths:
            self.files[path].durable = self.files[path].there

    def trimmed(self, stage: str, below: int) -> None:
        """The files of a channel below an epoch are gone."""
        for done in self.lines[stage].epochs[self._trimmed_below[stage] : below]:
            self.files[done.file].there = False
        self._trimmed_below[stage] = max(self._trimmed_below[stage], below)

    def power_cut(self) -> None:
        """What was not carried is lost."""
        for file in self.files.values():
            file.there = file.there and file.durable

    def published(self, sink: str, path: str) -> None:
        """A target shows the rows of an epoch to everybody."""
        stage, at = self._graph.sinks[sink], len(self.left[sink])
        self.read([path])
        line = self.lines[stage].epochs
        _ensure(
            at < len(line) and line[at].file == path, f"{sink} shows {path} as epoch {at}, which it is not"
        )
        self.left[sink].append(path)

    # What must be so.

    def captured(self, number: int, mode: str, parts: Mapping[str, Part]) -> None:
        """A snapshot was committed."""
        where = f"snapshot {number} ({mode})"
        for stage in sorted(self._graph.inside):
            _ensure(stage in parts, f"{where} has no part of {stage}")
            part, line = parts[stage], self.lines[stage]
            _ensure(
                part.epoch < len(line.epochs),
                f"{where} has epoch {part.epoch} of {stage}, which is not there",
            )
            self._check_durable(where, stage, part.epoch)
            ends = {name: parts[producer].epoch + 1 for name, producer in self._inside(stage).items()}
            self._check_seen(where, stage, part.epoch, part.positions, ends, repeats=mode == "at_least_once")
            for name, end in ends.items():
                self._check_kept(where, stage, name, part.positions[name], end)

    def returned(
        self, mode: str, heads: Mapping[str, int], positions: Mapping[str, Mapping[str, int]]
    ) -> None:
        """All stages stand where the ledger says, after a return to a snapshot that was taken in a mode."""
        before = {stage: list(line.epochs) for stage, line in self.lines.items()}
        for stage, line in self.lines.items():
            _ensure(
                heads[stage] < len(line.epochs),
                f"after the return {stage} is at {heads[stage]}, which never was",
            )
            _ensure(
                stage in self._graph.inside or heads[stage] == len(line.epochs) - 1,
                f"the return has undone epochs of {stage}, which is outside",
            )
            self._check_not_left(stage, heads[stage], positions)
            del line.epochs[heads[stage] + 1 :]
        for stage in sorted(self._graph.inside):
            self._rewind(stage, heads, positions[stage], before, mode == "at_least_once")
        for stage, inputs in self._graph.inputs.items():
            for name, producer in inputs.items():
                stop = len(self.lines[producer].epochs) if producer else len(self.items[name])
                self._check_kept("after the return", stage, name, positions[stage][name], stop)

    def settled(self) -> None:
        """Nothing more will happen: what has left is what a run without failures brings."""
        wanted = self._without_failures()
        for sink, stage in self._graph.sinks.items():
            line = [done.file for done in self.lines[stage].epochs]
            _ensure(self.left[sink] == line, f"{sink} shows {len(self.left[sink])} of {len(line)} epochs")
            shown = self.shown(sink)
            lost, more = wanted[stage] - shown, shown - wanted[stage]
            _ensure(not lost, f"{sink} lacks {dict(lost)}")
            born = {row[:2] for row in self.repeated}
            unexplained = [row for row in more if row[:2] not in born]
            _ensure(not unexplained, f"{sink} has {unexplained} too often")

    def shown(self, sink: str) -> Rows:
        """All that a target shows; trimmed files are known by what their stage had read."""
        stage = self._graph.sinks[sink]
        seen = self.lines[stage].after(len(self.left[sink]) - 1).seen
        shown: Rows = Counter()
        for row, times in seen.items():
            for out in self._graph.handed_on(stage, row):
                shown[out] += times
        return shown

    # How.

    def _inside(self, stage: str) -> dict[str, str]:
        """By input that comes from a stage of the region, that stage."""
        inputs = self._graph.inputs[stage].items()
        return {name: producer for name, producer in inputs if producer in self._graph.inside and producer}

    def _between(self, stage: str, name: str, start: int, stop: int) -> Rows:
        """The rows of an input between two positions, as they stand, whether kept or not."""
        producer = self._graph.inputs[stage][name]
        if producer is None:
            return Counter(self.items[name][start:stop])
        return _between(self._graph, producer, self.lines[producer].epochs, start, stop)

    def _check_seen(
        self,
        where: str,
        stage: str,
        epoch: int,
        positions: Mapping[str, int],
        ends: Mapping[str, int],
        repeats: bool,
    ) -> None:
        """A state has seen what its inputs hold up to where it reads on, but for what it is allowed to see again."""
        done, line = self.lines[stage].after(epoch), self.lines[stage]
        known: Rows = Counter(done.repeats)
        for name, position in positions.items():
            end = ends.get(name)
            _ensure(
                end is None or position <= end,
                f"{where}: {stage} has received {name} up to {position}, of which only {end} was sent",
            )
            known.update(self._between(stage, name, 0, position))
            if repeats:
                known.update(self._between(stage, name, position, line.read_until(epoch, name)))
        missing, surplus = known - done.seen, done.seen - known
        _ensure(not missing, f"{where}: {stage} reads on behind {dict(missing)}, which it has not seen")
        _ensure(not surplus, f"{where}: {stage} has seen {dict(surplus)}, and will again")

    def _check_durable(self, where: str, stage: str, epoch: int) -> None:
        for at, done in enumerate(self.lines[stage].epochs[: epoch + 1]):
            _ensure(
                self.files[done.file].durable, f"{where}: the files of {stage} epoch {at} would not survive"
            )

    def _check_kept(self, where: str, stage: str, name: str, start: int, stop: int) -> None:
        """The state of a channel is there to be read."""
        producer = self._graph.inputs[stage][name]
        for at in range(start, stop) if producer else ():
            file = self.lines[producer].epochs[at].file
            _ensure(
                self.files[file].there, f"{where}: {stage} has yet to read {name} epoch {at}, which is gone"
            )

    def _check_not_left(self, stage: str, head: int, positions: Mapping[str, Mapping[str, int]]) -> None:
        for sink, of in self._graph.sinks.items():
            shown = len(self.left[sink])
            _ensure(
                of != stage or shown <= head + 1,
                f"epoch {shown - 1} of {stage} has left by {sink} and is undone",
            )
        for reader in self._graph.readers(stage):
            at = positions[reader][channel(stage)]
            ok = reader in self._graph.inside or at <= head + 1
            _ensure(ok, f"epoch {at - 1} of {stage} was read by {reader}, which is outside, and is undone")

    def _rewind(
        self, stage: str, heads: Mapping[str, int], positions: Mapping[str, int],
        before: Mapping[str, list[Done]], repeats: bool,
    ) -> None:  # fmt: skip
        """What the state has seen of epochs that are undone it will see again; only one mode allows for that."""
        line, done = self.lines[stage], self.lines[stage].after(heads[stage])
        again: Rows = Counter()
        for name, producer in self._inside(stage).items():
            start, stop = positions[name], line.read_until(heads[stage], name)
            if stop > start:
                again.update(_between(self._graph, producer, before[producer], start, stop))
        _ensure(repeats or not again, f"after the return {stage} has seen {dict(again)}, which is undone")
        if again:
            reads = {name: (at, at) for name, at in positions.items()}
            done = Done(done.file, reads, done.seen, done.repeats + again)
            line.epochs[heads[stage]] = done
            self.repeated.update(again)
        line.positions = dict(positions)
        ends = {name: heads[producer] + 1 for name, producer in self._inside(stage).items()}
        self._check_seen("after the return", stage, heads[stage], positions, ends, repeats=False)
        self._check_there(stage)

    def _check_there(self, stage: str) -> None:
        """A state is the sum of all its epochs, so it needs the files of each; outputs alone are trimmed."""
        for at, done in enumerate(self.lines[stage].epochs):
            _ensure(self.files[done.file].durable, f"after the return the state of {stage} lacks epoch {at}")

    def _without_failures(self) -> dict[str, Rows]:
        made: dict[str, Rows] = {stage: Counter() for stage in self._graph.inputs}
        fresh: list[tuple[str, Row]] = [(name, row) for name, rows in self.items.items() for row in rows]
        while fresh:
            name, row = fresh.pop()
            for stage, inputs in self._graph.inputs.items():
                if name in inputs:
                    for out in self._graph.handed_on(stage, row):
                        made[stage][out] += 1
                        fresh.append((channel(stage), out))
        return made


def _between(graph: Graph, stage: str, epochs: list[Done], start: int, stop: int) -> Rows:
    """What a stage hands on from one epoch up to another: what its state saw in between, made into rows."""
    _ensure(stop <= len(epochs), f"{stage} is read up to epoch {stop}, and has {len(epochs)}")
    earlier = epochs[start - 1].seen if start else Counter()
    found: Rows = Counter()
    if stop > start:
        for row, times in (epochs[stop - 1].seen - earlier).items():
            for out in graph.handed_on(stage, row):
                found[out] += times
    return found


def _ensure(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)
