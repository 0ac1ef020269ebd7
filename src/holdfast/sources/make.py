"""Makes sources from their descriptions."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.errors import PlanError
from holdfast.flow import endpoints
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.generate import GenerateSource
from holdfast.flow.kafka import KafkaSource
from holdfast.flow.lake import DeltaSource
from holdfast.flow.own_edges import OwnSource
from holdfast.flow.streams import StreamSource
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.holder import supervisor
from holdfast.ledger.ledger import Ledger
from holdfast.sources.contract import Source
from holdfast.sources.delta import Delta
from holdfast.sources.files import Files
from holdfast.sources.generate import Generate
from holdfast.sources.kafka import Kafka
from holdfast.sources.rows import Rows
from holdfast.sources.spark_stream import SparkStream
from holdfast.sources.stream_log import STREAMS


def make_source(plan: FlowPlan, name: str, root: Path, ledger: Ledger) -> Source:
    """A source of a flow whose work directory is `root`."""
    match plan.sources[name]:
        case endpoints.FilesSource() as description:
            return Files(name, description)
        case endpoints.RowsSource() as description:
            return Rows(name, description)
        case GenerateSource() as description:
            with ledger.read() as tx:
                first = ledger_inputs.items(tx, name, 0, 1)
            return Generate(name, description, *first)
        case KafkaSource() as description:
            return Kafka(plan.name, name, description)
        case DeltaSource() as description:
            return Delta(name, description)
        case StreamSource() as description:
            return SparkStream(name, description, root / STREAMS / name, lambda: supervisor(ledger))
        case OwnSource(make=make):
            return _own(name, make())


def _own(name: str, made: object) -> Source:
    if not isinstance(made, Source):
        raise PlanError(
            f"what hf.own_source makes for {name!r} is a {type(made).__name__}, and no holdfast.edges.Source",
            operation="bind",
            hint="Inherit from holdfast.edges.Source.",
        )
    return made
