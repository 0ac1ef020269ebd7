"""Names that must never collide."""

from __future__ import annotations

import secrets
import time


def new_attempt_id() -> str:
    """An id that sorts by creation time and is unique without coordination."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(5)}"


def epoch_name(epoch: int) -> str:
    """How an epoch is spelled in file names: fixed width, so that names sort as numbers."""
    return f"{epoch:08d}"
