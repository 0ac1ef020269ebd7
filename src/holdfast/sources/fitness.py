"""Why a file cannot be read as what it should be."""

from __future__ import annotations

from dataclasses import dataclass


class Unfit(Exception):
    """A file as a whole cannot be read: what is wrong with it, all of it, and what to do about it."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True)
class Facts:
    """What is known of a file that can be read."""

    rows: int
    columns: str | None = (
        None  # a digest of the declared columns as it has them, where tasks can read it themselves
    )
    by: str | None = None  # of a Parquet file, who can read it as declared: one of READERS


# Spark's reader alone; Arrow alone, which converts; or both, with the same rows.
SPARK, ARROW, EITHER = READERS = ("spark", "arrow", "either")
