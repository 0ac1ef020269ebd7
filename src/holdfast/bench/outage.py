"""What a kill cost, from the times of commits around it. No clock, no processes: they are arguments.

All times are milliseconds of one machine's wall clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Epochs before a kill whose median is the pace that the flow had.
PACE_EPOCHS = 20

# The flow has caught up when an epoch takes no longer than so many of those before the kill.
CAUGHT_UP = 1.5


@dataclass(frozen=True)
class Commit:
    """A committed epoch that read rows."""

    epoch: int
    at_ms: float
    seconds: float | None = None  # from the begin of its work to its commit, where it is known


@dataclass(frozen=True)
class Outage:
    """One kill, in seconds. What did not happen while it was watched is None.

    `restore_s` goes from the promotion of the successor to the begin of its first epoch: it covers all that is done in
    between, the start of a process or a replay too. It is 0 where an epoch was under way already.
    """

    epoch_s: float  # the median from commit to commit before the kill
    detection_s: float | None  # to the promotion
    restore_s: float | None
    first_epoch_s: float  # from the kill to the first commit after it
    gap_s: float  # from the last commit before the kill to the first after it
    caught_up_s: float | None  # to the first epoch after the first that took no longer than usual

    @property
    def gap_epochs(self) -> float:
        """The gap between commits, in usual epochs."""
        return self.gap_s / self.epoch_s


def pace_s(commits: Sequence[Commit]) -> float:
    """The median from commit to commit of the newest epochs.

    >>> pace_s([Commit(0, 1000), Commit(1, 3000), Commit(2, 4000), Commit(3, 6000)])
    2.0
    """
    newest = commits[-PACE_EPOCHS - 1 :]
    return statistics.median(later.at_ms - earlier.at_ms for earlier, later in pairwise(newest)) / 1000


def outage(
    commits: Sequence[Commit], killed_ms: float, promoted_ms: float | None, hot: bool
) -> Outage | None:
    """What a kill cost, None if nothing was committed since.

    Unless others go on all the time (`hot`), the first new epoch is one that was committed after the promotion.
    """
    before = [commit for commit in commits if commit.at_ms <= killed_ms]
    begin_ms = killed_ms if hot or promoted_ms is None else promoted_ms
    after = [commit for commit in commits if commit.at_ms > begin_ms]
    if not after:
        return None
    usual_s = pace_s(before)
    return Outage(
        usual_s,
        None if promoted_ms is None else (promoted_ms - killed_ms) / 1000,
        _restore_s(after[0], promoted_ms),
        (after[0].at_ms - killed_ms) / 1000,
        (after[0].at_ms - before[-1].at_ms) / 1000,
        _caught_up_s(after, killed_ms, usual_s),
    )


def _restore_s(first: Commit, promoted_ms: float | None) -> float | None:
    if promoted_ms is None or first.seconds is None:
        return None
    return max(0.0, (first.at_ms - promoted_ms) / 1000 - first.seconds)


def _caught_up_s(after: Sequence[Commit], killed_ms: float, usual_s: float) -> float | None:
    for earlier, later in pairwise(after):
        if (later.at_ms - earlier.at_ms) / 1000 <= CAUGHT_UP * usual_s:
            return (later.at_ms - killed_ms) / 1000
    return None
