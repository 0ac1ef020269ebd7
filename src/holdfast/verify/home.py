"""The directory of one run, and a flow whose sinks lie in it.

A flow that is tested must not touch what it writes to in earnest: every sink is moved into the run's directory, or, where
it writes to a server, into a target of the run's own there (targets.py). Its sources are read where they are.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from holdfast.core.errors import PlanError
from holdfast.flow.endpoints import FilesSource, ParquetSink, SinkDescription, SourceDescription
from holdfast.flow.flow_plan import FlowPlan, SinkSpec
from holdfast.flow.lake import DeltaSink, DeltaSource, IcebergSink
from holdfast.flow.streams import StreamSource
from holdfast.flow.table_sink import TableSink

InPath = TypeVar("InPath", bound=FilesSource | DeltaSource)


@dataclass(frozen=True)
class Home:
    """Where one run has its state, its sinks and its logs. Functions of the flow run with it as their directory."""

    root: Path

    @property
    def work(self) -> Path:
        """The work directory."""
        return self.root / "work"

    @property
    def log(self) -> Path:
        """What the run's processes said."""
        return self.root / "log"

    @property
    def sinks(self) -> Path:
        """Where all sinks were moved to."""
        return self.root / "sinks"

    def sink(self, name: str) -> Path:
        """Where a sink was moved to."""
        return self.sinks / name

    def made(self) -> Home:
        """The same, on the disk."""
        self.sinks.mkdir(parents=True, exist_ok=True)
        return self

    def copied(self, root: Path) -> Home:
        """All of it, elsewhere."""
        shutil.copytree(self.root, root, symlinks=True)
        return Home(root)


def relocated(plan: FlowPlan, origin: Path, home: Home) -> FlowPlan:
    """The flow with its sinks in a run's directory; relative paths of sources are from `origin`."""
    return replace(
        plan,
        sources={name: _source(description, origin) for name, description in plan.sources.items()},
        tables={
            name: replace(spec, description=_from(spec.description, origin))
            for name, spec in plan.tables.items()
        },
        sinks=tuple(replace(sink, description=_sink(sink, home)) for sink in plan.sinks),
        replica=str(home.root / "replica") if plan.replica else None,
    )


def _source(description: SourceDescription, origin: Path) -> SourceDescription:
    if isinstance(description, StreamSource):
        raise PlanError(
            "a stream of Spark's cannot be given to every run anew",
            operation="verify",
            hint="Verify the flow with hf.files(...) in its place: the log of the stream has files of the same rows.",
        )
    match description:
        case FilesSource() | DeltaSource():
            return _from(description, origin)
        case _:
            return description


def _from(description: InPath, origin: Path) -> InPath:
    if "://" in description.path:
        return description
    return replace(description, path=str(origin / description.path))


def _sink(sink: SinkSpec, home: Home) -> SinkDescription:
    match sink.description:
        case ParquetSink() as description:
            return replace(description, path=str(home.sink(sink.name)))
        case TableSink(url=url) as description if url.startswith("sqlite"):
            return replace(description, url=f"sqlite:///{home.sink(sink.name)}.db")
        case DeltaSink() as description:
            return replace(description, path=str(home.sink(sink.name)), options=())
        case IcebergSink() as description:
            place = home.sink(sink.name)
            settings = {"type": "sql", "uri": f"sqlite:///{place}.db", "warehouse": str(place)}
            return replace(description, catalog="default", settings=tuple(settings.items()))
        case description:
            return description
