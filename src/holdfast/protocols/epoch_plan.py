"""The plan of an epoch: everything that can change its result, recorded before the work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.json import Json


@dataclass(frozen=True)
class EpochPlan:
    """What an epoch reads and in which shape it runs. The base state is the spine at the epoch before."""

    ranges: Mapping[str, tuple[int, int]]  # by input: from, up to but without
    rows: int  # that the inputs hold in these ranges, as far as they can tell
    boundaries: tuple[int, ...]  # of slots, one task between each two
    aggregate_first: bool
    fingerprint: str  # of the code
    now_ms: int  # what the epoch calls the present time
    watermark_us: int | None = None  # by which rows are late and windows closed
    floor: int | None = None  # of the base state: buckets below it do not exist
    direct: bool = False  # whether tasks read the inputs themselves
    ends: tuple[str, ...] = ()  # substreams that a source closes, or whose final emission a stage makes
    tables: Mapping[str, Json] = field(default_factory=dict)  # by name: the copy of the version of each

    def with_fingerprint(self, fingerprint: str) -> EpochPlan:
        """The same ranges for other code: a plan without a manifest may be replaced."""
        return replace(self, fingerprint=fingerprint)

    def with_tables(self, tables: Mapping[str, Json]) -> EpochPlan:
        """The same epoch, enriched with these versions."""
        return replace(self, tables=tables)

    def to_json(self) -> Json:
        """As the ledger stores it."""
        return {
            "ranges": {name: list(positions) for name, positions in self.ranges.items()},
            "rows": self.rows,
            "boundaries": list(self.boundaries),
            "aggregate_first": self.aggregate_first,
            "fingerprint": self.fingerprint,
            "now_ms": self.now_ms,
            "watermark_us": self.watermark_us,
            "floor": self.floor,
            "direct": self.direct,
            **({"ends": list(self.ends)} if self.ends else {}),
            **({"tables": dict(self.tables)} if self.tables else {}),
        }

    @classmethod
    def from_json(cls, body: Json) -> EpochPlan:
        """As the ledger stored it."""
        ranges = {name: (int(start), int(stop)) for name, (start, stop) in body["ranges"].items()}
        boundaries = tuple(int(b) for b in body["boundaries"])
        return cls(
            ranges,
            body["rows"],
            boundaries,
            body["aggregate_first"],
            body["fingerprint"],
            body["now_ms"],
            body["watermark_us"],
            body["floor"],
            body.get("direct", False),
            tuple(body.get("ends", ())),
            body.get("tables", {}),
        )
