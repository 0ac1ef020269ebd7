"""How often an epoch takes rows from sources, where a flow says so. What has come in between is one batch then."""

from __future__ import annotations


def due_ms(last_ms: int | None, every_us: int | None) -> int:
    """When an epoch may take rows again, if one that was planned at `last_ms` was the last to do so.

    >>> due_ms(1_000, 10_000_000)
    11000
    >>> due_ms(None, 10_000_000), due_ms(1_000, None)
    (0, 0)
    """
    return 0 if last_ms is None or every_us is None else last_ms + -(-every_us // 1_000)


def is_due(last_ms: int | None, now_ms: int, every_us: int | None) -> bool:
    """Whether an epoch may take rows now. A clock that was set back to before the last one makes nobody wait.

    >>> is_due(1_000, 10_999, 10_000_000), is_due(1_000, 11_000, 10_000_000), is_due(1_000, 999, 10_000_000)
    (False, True, True)
    """
    return now_ms >= due_ms(last_ms, every_us) or (last_ms is not None and now_ms < last_ms)
