"""What a source or a sink of your own is made of. `holdfast.testing` has the suites that check it; docs/EDGES.md tells more."""

from holdfast.ledger.inputs import Item
from holdfast.sinks.contract import Sink, SinkRecord, admit
from holdfast.sinks.reading import batches
from holdfast.sinks.two_phase import TwoPhase
from holdfast.sources.contract import Limits, Source, Taken

__all__ = ["Item", "Limits", "Sink", "SinkRecord", "Source", "Taken", "TwoPhase", "admit", "batches"]
