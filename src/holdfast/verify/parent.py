"""Has a process end with the one that started it, however that one ends: nothing is left behind, not even by kill -9."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_the_parent() -> None:
    """From here on, and through `exec` too. The kernel does it; elsewhere than on Linux nothing happens."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
