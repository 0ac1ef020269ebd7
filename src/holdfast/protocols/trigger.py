"""How often an epoch takes rows from sources, where a flow says so. What has come in between is one batch then."""

from __future__ import annotations


def is_due(last_ms: int | None, now_ms: int, every_us: int | None) -> bool:
    """Whether an epoch may take rows, if one planned at `last_ms` was the last to do so.

    A clock that was set back to before that makes nobody wait.

    >>> is_due(1_000, 10_999, 10_000_000), is_due(1_000, 11_000, 10_000_000), is_due(1_000, 999, 10_000_000)
    (False, True, True)
    >>> is_due(None, 1_000, 10_000_000), is_due(1_000, 1_001, None)
    (True, True)
    """
    if last_ms is None or every_us is None:
        return True
    return not last_ms <= now_ms < last_ms + -(-every_us // 1_000)
