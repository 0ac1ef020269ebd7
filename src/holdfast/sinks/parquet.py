"""Parquet files in a directory, each epoch whole and once.

On disk, for the target `out/`:

    out/epoch=00000007/part-00000.parquet      the rows: hard links to the segments, copies across devices
    out/epoch=00000007/_holdfast.json          the SinkRecord; readers pass over names that start with `_`
    out/epoch-00000007.parquet                 instead of both with `single_file`: the segments as one file,
                                               the SinkRecord in its key-value metadata under `holdfast`
    .out.holdfast/gen-00000002-ID/             one opening by generation 2, the claim; ID is unique
    .out.holdfast/gen-00000002-ID/record.json  {"flow", "start", "last": SinkRecord or null}
    .out.holdfast/gen-00000002-ID/staging/     the epoch that is being made
    .out.holdfast/fenced-00000001-ID/          an earlier opening, renamed away, until its record is kept

Invariants:

1. An epoch appears under its final name in one rename, with its record, after all its bytes are durable.
2. All that an opening writes goes by a path through its claim. Once the claim is renamed away, neither a
   rename into the target nor a new record can succeed, however late the process wakes up.
3. An opening first makes its claim, then lists the claims. Of two that open at the same time, at least one
   sees the other: the older one refuses itself, or is fenced.
4. Fence first, then read: what a fenced opening managed to publish is found. A fenced record is removed
   only after its successor is durable.
5. The last record is the newer of `record.json` and the newest epoch in the target. So a crash between the
   rename and the record loses nothing, and neither does the loss of the hidden directory (except that
   epochs without rows, which move only the record, are then offered again).

It needs a local file system, or one that resolves paths anew for each call as a local one does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.core import crashpoints
from holdfast.core.errors import FencedError, HoldfastError, PlanError, SinkError, StorageError
from holdfast.core.ids import epoch_name, new_attempt_id
from holdfast.sinks.contract import RESET, SinkRecord, admit, opened_for, other_flow
from holdfast.sinks.reading import has_rows
from holdfast.storage import atomic

_CLAIM = re.compile(r"(gen|fenced)-(\d{8,})-\w+")
_EPOCH = re.compile(r"epoch(?:=(\d{8,})|-(\d{8,})\.parquet)")
_MARKER = "_holdfast.json"
_METADATA_KEY = b"holdfast"


@dataclass(frozen=True)
class _Held:
    """What `record.json` holds."""

    flow: str
    start: int
    last: SinkRecord | None

    @property
    def epoch(self) -> int:
        return -1 if self.last is None else self.last.epoch


@dataclass(frozen=True)
class _Opening:
    claim: Path
    branch: int
    generation: int
    held: _Held

    @property
    def flow(self) -> str:
        return self.held.flow


class ParquetSink:
    """Publishes each epoch as a directory of Parquet files, or as one file, that appears in one step."""

    def __init__(self, path: str | Path, single_file: bool = False, schema: pa.Schema | None = None) -> None:
        if schema is not None and not single_file:
            _refuse_hidden(schema)
        self.path = Path(path).resolve()
        if not self.path.name:
            raise SinkError(
                f"{self.path} cannot be a target", operation="open", hint="Name a directory in it."
            )
        self._single_file = single_file
        self.hidden = self.path.parent / f".{self.path.name}.holdfast"
        self._opening: _Opening | None = None

    @property
    def place(self) -> object:
        """The directory."""
        return self.path

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """Fence every older generation in the target, then say what is the last record found there."""
        self._opening = None
        self._refuse_unless_ours(flow, generation)
        claim = self.hidden / f"gen-{epoch_name(generation)}-{new_attempt_id()}"
        with self._explained("open", generation):
            atomic.make_dirs(claim)
        with self._explained("open", generation, claim):
            os.mkdir(claim / "staging")
            fenced = self._fence(claim, generation)
            atomic.make_dirs(self.path)
            # An epoch may have been renamed into place by a process that died before its fsync: it must be
            # durable before a record says so.
            atomic.fsync_dir(self.path)
            held = self._found() or _Held(flow, start, None)
            _write_held(claim, held)
            for leftover in fenced:
                atomic.discard(leftover)
        self._opening = _Opening(claim, branch, generation, held)
        return held.last

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Make the rows of one epoch visible, once; an epoch without rows moves only the record."""
        opening = opened_for(self._opening, record, self.path)
        if admit(opening.held.last, record, start=opening.held.start) == "already":
            return
        filled = [segment for segment in segments if has_rows(segment)]
        crashpoints.reach("sink.before_stage")
        held = replace(opening.held, last=record)
        with self._explained("publish", opening.generation, opening.claim, record.epoch):
            if filled:
                self._publish_rows(opening.claim, record, filled)
            _write_held(opening.claim, held)
        self._opening = replace(opening, held=held)
        crashpoints.reach("sink.after_record")

    def close(self) -> None:
        """Let go of the target; the record stays in it."""
        self._opening = None

    def last_of(self, flow: str) -> int | None:
        """The last epoch that a flow has published here; an error if the target is another flow's."""
        found = self._found()
        if found and found.flow != flow:
            raise other_flow(found.flow, flow)
        return found.last.epoch if found and found.last else None

    def epochs(self) -> list[Path]:
        """What was published, each epoch a directory or a file."""
        return [self.path / name for name in sorted(_names(self.path)) if _EPOCH.fullmatch(name)]

    def newest_generation(self) -> int | None:
        """The newest generation that left a trace in the target: one that takes over must be above it."""
        return self._newest_generation(self._found())

    def _newest_generation(self, found: _Held | None) -> int | None:
        seen = [generation for _, _, generation in self._claims()]
        seen += [found.last.generation] if found and found.last else []
        return max(seen, default=None)

    def _refuse_unless_ours(self, flow: str, generation: int) -> None:
        """Stop before anything is changed, so that a mistake fences nobody."""
        self.last_of(flow)
        found = self._found()
        newest = self._newest_generation(found)
        if newest is not None and newest > generation:
            raise self._fenced_by(newest, generation)
        if found and found.last and not os.path.isdir(self.path):
            raise SinkError(
                f"{self.path} is gone, although it was published up to epoch {found.last.epoch}",
                operation="open",
                hint=f"Restore it; or create it empty to go on after that epoch. To start over, {RESET} removes the record "
                f"of it too, {self.hidden}.",
            )

    def _fence(self, claim: Path, generation: int) -> list[Path]:
        """Rename all other openings away; what is returned may go once its record is kept."""
        others = [found for found in self._claims() if found[0] != claim]
        newest = max((number for _, _, number in others), default=generation)
        if newest > generation:
            atomic.discard(claim)
            raise self._fenced_by(newest, generation)
        fenced = [_renamed_away(path) if kind == "gen" else path for path, kind, _ in others]
        for path in fenced:
            _void_staging(path)
        atomic.fsync_dir(self.hidden)
        return fenced

    def _claims(self) -> list[tuple[Path, str, int]]:
        """All openings that left a trace: where, whether fenced, and of which generation."""
        matches = [match for name in _names(self.hidden) if (match := _CLAIM.fullmatch(name))]
        return [(self.hidden / match[0], match[1], int(match[2])) for match in matches]

    def _found(self) -> _Held | None:
        """What the target holds last, by its own records and by its newest epoch."""
        helds = [held for path, _, _ in self._claims() if (held := _read_held(path))]
        best = max(helds, key=lambda held: held.epoch, default=None)
        newest = self._newest_record()
        if newest is None or (best and best.epoch > newest.epoch):
            return best
        return _Held(newest.flow, best.start if best else newest.epoch, newest)

    def _newest_record(self) -> SinkRecord | None:
        """The record of the epoch with the highest number; the names of the others are enough."""
        matches = [match for name in _names(self.path) if (match := _EPOCH.fullmatch(name))]
        if not matches:
            return None
        newest = max(matches, key=lambda match: int(match[1] or match[2]))
        return _record_of(self.path / newest[0], int(newest[1] or newest[2]))

    def _publish_rows(self, claim: Path, record: SinkRecord, segments: Sequence[Path]) -> None:
        number = epoch_name(record.epoch)
        staged = claim / "staging" / (f"epoch-{number}.parquet" if self._single_file else f"epoch={number}")
        atomic.discard(staged)
        try:
            stage = _stage_file if self._single_file else _stage_directory
            stage(staged, record, segments)
            crashpoints.reach("sink.after_stage")
            self._show(staged, record)
        finally:
            atomic.discard(staged)
        crashpoints.reach("sink.after_publish")

    def _show(self, staged: Path, record: SinkRecord) -> None:
        final = self.path / staged.name
        try:
            atomic.rename_without_replacing(staged, final)
        except atomic.TargetExistsError:
            # An earlier try may have come as far as the rename but not as far as the record.
            present = _record_of(final, record.epoch)
            if present.identity != record.identity:
                raise _taken(final, present, record) from None
        # The name that the rename took away need not be durable: staging is thrown away after a crash.
        atomic.fsync_dir(self.path)

    @contextmanager
    def _explained(
        self, operation: str, generation: int, claim: Path | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """Tell a fenced opening, whose paths are gone, from a target that cannot be written."""
        try:
            yield
        except (OSError, StorageError, pa.ArrowException) as error:
            if claim is not None and not os.path.isdir(claim):
                raise self._claim_gone(generation) from error
            reason = error.message if isinstance(error, StorageError) else str(error)
            message, hint = f"{self.path} cannot be written: {reason}", atomic.hint_for(error)
            raise SinkError(message, operation=operation, epoch=epoch, hint=hint) from error

    def _claim_gone(self, generation: int) -> HoldfastError:
        newest = self.newest_generation()
        if self._claims() and newest is not None:
            return self._fenced_by(newest, generation)
        return SinkError(
            f"{self.hidden} is gone, and with it the record of what was published",
            operation="publish",
            hint="Start the flow again: the record is then found in the published epochs.",
        )

    def _fenced_by(self, newest: int, generation: int) -> FencedError:
        by = f"generation {newest}" if newest > generation else "another opening of the same generation"
        last = self._found()
        told = f", which has published up to epoch {last.epoch}" if last and last.last else ""
        return FencedError(
            f"generation {generation} was fenced in {self.path} by {by}{told}", operation="fence"
        )


def _refuse_hidden(schema: pa.Schema) -> None:
    """Readers take the column `epoch` from the directory's name, and Spark does not tell upper from lower case."""
    hidden = [name for name in schema.names if name.lower() == "epoch"]
    if hidden:
        raise PlanError(
            f"the column {hidden[0]!r} would be hidden by the column 'epoch' that readers of hf.parquet take from "
            "the names of the directories",
            operation="plan",
            hint="Rename the column in a transform, or use hf.parquet(..., single_file=True).",
        )


def _renamed_away(claim: Path) -> Path:
    fenced = claim.with_name(claim.name.replace("gen", "fenced", 1))
    # Gone means that someone else fenced it, under the same name.
    with suppress(FileNotFoundError):
        os.rename(claim, fenced)
    return fenced


def _void_staging(fenced: Path) -> None:
    """Give what is staged other names: a rename that had already found the directory finds nothing in it."""
    for name in _names(fenced / "staging"):
        with suppress(FileNotFoundError):
            os.rename(fenced / "staging" / name, fenced / "staging" / f"void-{new_attempt_id()}")


def _write_held(claim: Path, held: _Held) -> None:
    last = held.last.to_json() if held.last else None
    fields = {"flow": held.flow, "start": held.start, "last": last}
    atomic.write_atomic(claim / "record.json", json.dumps(fields).encode())


def _read_held(claim: Path) -> _Held | None:
    """The record of an opening; none if it was interrupted before it wrote one, or has been removed."""
    fields = _read_json(claim / "record.json")
    if fields is None:
        return None
    flow, start, last = (fields.get(name) for name in ("flow", "start", "last"))
    if not isinstance(flow, str) or not isinstance(start, int) or not isinstance(last, dict | None):
        raise _unreadable(claim / "record.json", "fields are missing")
    return _Held(flow, start, SinkRecord.from_json(last) if last else None)


def _record_of(epoch_path: Path, epoch: int) -> SinkRecord:
    """The record that was published with an epoch's rows."""
    if os.path.isdir(epoch_path):
        fields = _read_json(epoch_path / _MARKER)
    else:
        fields = _read_metadata(epoch_path)
    record = SinkRecord.from_json(fields) if fields is not None else None
    if record is None or record.epoch != epoch:
        raise SinkError(
            f"{epoch_path} has the name of an epoch but not its record",
            operation="read record",
            hint="It was made or changed by something else: restore it or move it away.",
        )
    return record


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(fields, dict):
        raise _unreadable(path, "not an object")
    return fields


def _read_metadata(path: Path) -> dict[str, object] | None:
    try:
        text = (pq.read_metadata(path).metadata or {}).get(_METADATA_KEY)
        return None if text is None else dict(json.loads(text))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _unreadable(path, str(error)) from error


def _stage_directory(staged: Path, record: SinkRecord, segments: Sequence[Path]) -> None:
    # Never with parents: that the claim is gone is how a fenced process learns of it.
    os.mkdir(staged)
    for number, segment in enumerate(segments):
        part = staged / f"part-{number:05d}.parquet"
        atomic.link_or_copy(segment, part)
        atomic.fsync_file(part)
    atomic.write_new(staged / _MARKER, json.dumps(record.to_json()).encode())
    atomic.fsync_dir(staged)


def _stage_file(staged: Path, record: SinkRecord, segments: Sequence[Path]) -> None:
    """Concatenate the segments, one row group in memory at a time."""
    with pq.ParquetFile(segments[0]) as first:
        schema, codec = first.schema_arrow, first.metadata.row_group(0).column(0).compression
    with pq.ParquetWriter(staged, schema, compression="NONE" if codec == "UNCOMPRESSED" else codec) as writer:
        for segment in segments:
            with pq.ParquetFile(segment) as file:
                if not file.schema_arrow.equals(schema):
                    raise SinkError(f"{segment} and {segments[0]} differ in schema", operation="publish")
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))
        writer.add_key_value_metadata({_METADATA_KEY: json.dumps(record.to_json())})
    atomic.fsync_file(staged)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(directory, error.strerror or str(error)) from error


def _unreadable(path: Path, reason: str) -> SinkError:
    return SinkError(f"{path} cannot be read: {reason}", operation="read record")


def _taken(final: Path, present: SinkRecord, record: SinkRecord) -> SinkError:
    return SinkError(
        f"{final} already holds {present}, so {record} cannot be published",
        operation="publish",
        epoch=record.epoch,
        hint="Give the flow or branch a target of its own.",
    )
