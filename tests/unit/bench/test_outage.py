"""What a kill cost, from made-up commits."""

from __future__ import annotations

from holdfast.bench.outage import Commit, Outage, outage

# One commit a second up to the kill at 10.5 s.
BEFORE = [Commit(number, 1000 * number, 0.9) for number in range(11)]
KILLED_MS = 10_500


def after(*at_ms: int) -> list[Commit]:
    return [*BEFORE, *(Commit(11 + number, at, 0.9) for number, at in enumerate(at_ms))]


def test_every_phase_is_measured_from_the_kill() -> None:
    found = outage(after(13_000, 16_000, 17_100), KILLED_MS, promoted_ms=10_600, hot=False)
    assert found == Outage(
        epoch_s=1.0, detection_s=0.1, restore_s=1.5, first_epoch_s=2.5, gap_s=3.0, caught_up_s=6.6
    )
    assert found.gap_epochs == 3.0


def test_nothing_is_known_before_the_first_commit() -> None:
    assert outage(BEFORE, KILLED_MS, promoted_ms=10_600, hot=False) is None


def test_a_commit_before_the_promotion_is_the_predecessors_unless_members_race() -> None:
    commits = after(10_550, 13_000)
    cold = outage(commits, KILLED_MS, promoted_ms=10_600, hot=False)
    hot = outage(commits, KILLED_MS, promoted_ms=10_600, hot=True)
    assert cold is not None
    assert hot is not None
    assert (cold.first_epoch_s, hot.first_epoch_s) == (2.5, 0.05)


def test_an_epoch_that_was_under_way_needs_no_restore() -> None:
    found = outage(after(11_000, 12_000), KILLED_MS, promoted_ms=10_600, hot=True)
    assert found is not None
    assert (found.restore_s, found.gap_s, found.caught_up_s) == (0.0, 1.0, 1.5)


def test_without_a_ledger_only_the_commits_speak() -> None:
    commits = [Commit(commit.epoch, commit.at_ms) for commit in after(20_000)]
    found = outage(commits, KILLED_MS, promoted_ms=None, hot=False)
    assert found is not None
    assert (found.first_epoch_s, found.detection_s, found.restore_s, found.caught_up_s) == (
        9.5,
        None,
        None,
        None,
    )
