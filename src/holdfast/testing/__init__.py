"""The conformance suites: what every source and every sink must do, for yours as for those of Holdfast.

A suite is a class of pytest tests. Inherit from it, say how a source or a target is made, and run pytest:

    from holdfast.testing import SinkSuite, Target

    class TestMySink(SinkSuite):
        def target(self, schema, place):
            return Target(lambda: MySink(place / "out", schema), lambda: read_all(place / "out"))
"""

from holdfast.testing.sinks import SinkSuite, Target
from holdfast.testing.sources import Origin, SourceSuite
from holdfast.testing.two_phase import Doubtful, TwoPhaseSuite

__all__ = ["Doubtful", "Origin", "SinkSuite", "SourceSuite", "Target", "TwoPhaseSuite"]
