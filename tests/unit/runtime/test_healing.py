"""What fails for a reason that heals by itself is done again; anything else, and anything for too long, is raised."""

from __future__ import annotations

from threading import Event

import pytest

from holdfast.core import limits
from holdfast.core.errors import FencedError, SinkError
from holdfast.runtime.healing import until_healed


class Target:
    """Fails so often, then answers."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.left:
            raise self.error
        return "done"


def away() -> SinkError:
    return SinkError("no server", heals=True)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SINK_PAUSE_MS", 0)


def test_a_target_that_comes_back_is_given_the_same_again() -> None:
    target = Target(3, away())
    assert until_healed(target, Event()) == "done"
    assert target.calls == 4


@pytest.mark.parametrize("error", [SinkError("refused"), FencedError("replaced"), ValueError("a fault")])
def test_what_does_not_heal_is_raised_at_once(error: Exception) -> None:
    target = Target(1, error)
    with pytest.raises(type(error)):
        until_healed(target, Event())
    assert target.calls == 1


def test_a_target_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SINK_HEALS_MS_MAX", -1)
    with pytest.raises(SinkError, match="no server"):
        until_healed(Target(9, away()), Event())


def test_a_flow_that_is_to_stop_does_not_wait_for_a_target() -> None:
    stopping = Event()
    stopping.set()
    target = Target(9, away())
    with pytest.raises(SinkError, match="no server"):
        until_healed(target, stopping)
    assert target.calls == 1
