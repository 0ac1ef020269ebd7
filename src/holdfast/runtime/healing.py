"""A target that is away for a moment: what failed for a reason that heals by itself is done again, within a bound.

A server that is restarted, or a table that somebody else has locked, costs a flow time and nothing else. To do it again
is safe for every sink: its record decides whether the first try had its effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from holdfast.core import limits
from holdfast.core.errors import SinkError

T = TypeVar("T")


def until_healed(act: Callable[[], T], stopping: Event) -> T:
    """What `act` returns. An error that does not heal, or has not within the bound, is raised as it is."""
    deadline = time.monotonic() + limits.SINK_HEALS_MS_MAX / 1000
    pause_ms = limits.SINK_PAUSE_MS
    while True:
        try:
            return act()
        except SinkError as error:
            if not error.heals or time.monotonic() > deadline or stopping.wait(pause_ms / 1000):
                raise
        pause_ms = min(2 * pause_ms, limits.SINK_PAUSE_MS_MAX)
