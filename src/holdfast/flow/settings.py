"""The settings of a flow as a whole: which values they may have."""

from __future__ import annotations

from holdfast.core.errors import PlanError
from holdfast.flow.policies import TIER_THAT_SURVIVES
from holdfast.flow.substreams import TRACKERS

GUARANTEES = ("at_most_once", "at_least_once", "exactly_once")
SURVIVES = tuple(TIER_THAT_SURVIVES)


def check_settings(guarantee: str, survives: str, tracker: str, replica: str | None) -> None:
    """Refuse a setting that is none of its choices."""
    for option, value, choices in (
        ("guarantee", guarantee, GUARANTEES),
        ("survives", survives, SURVIVES),
        ("tracker", tracker, TRACKERS),
    ):
        if value not in choices:
            raise PlanError(f"{option}={value!r} is not one of {', '.join(choices)}", operation="describe")
    if replica is not None and not (isinstance(replica, str) and replica):
        raise PlanError(
            f"replica={replica!r} does not name a directory",
            operation="describe",
            hint='Name one that is not lost with this machine, such as replica="/mnt/backup/orders".',
        )
