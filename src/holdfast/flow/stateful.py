"""Checks what a user says of a step of their own, and makes its node."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.duration import microseconds
from holdfast.core.errors import PlanError
from holdfast.flow.nodes import Node, OwnOperator
from holdfast.flow.own import EachKey, Final, Update
from holdfast.flow.substreams import SUBSTREAM
from holdfast.flow.windows import event_time


def own_operator(
    upstream: Node,
    function: Update,
    by: str | Sequence[str],
    state: str,
    output: str,
    time: str | None,
    late: str,
    order_by: str | Sequence[str],
    expire_after: str | None,
    max_ahead: str | None,
    on_end: Final | None,
) -> OwnOperator:
    """The node of `stream.stateful(...)`."""
    if not callable(function):
        raise PlanError(f"stateful needs a function, not {function!r}", operation="describe")
    keys = (by,) if isinstance(by, str) else tuple(by)
    if not keys or len(set(keys)) != len(keys):
        raise PlanError(f"stateful needs key columns, each once, not by={by!r}", operation="describe")
    if isinstance(function, EachKey) and function.by != keys:
        raise PlanError(
            f"each_key is by {', '.join(function.by)}, and stateful by {', '.join(keys)}",
            operation="describe",
        )
    if time is None and max_ahead is not None:
        raise PlanError("max_ahead= needs time=", operation="describe")
    if on_end is not None:
        _check_on_end(on_end, keys, expire_after)
    return OwnOperator(
        upstream,
        function,
        keys,
        state,
        output,
        event_time(time, microseconds(late, "late", zero=True), max_ahead) if time else None,
        (order_by,) if isinstance(order_by, str) else tuple(order_by),
        None if expire_after is None else microseconds(expire_after, "expire_after"),
        on_end,
    )


def _check_on_end(on_end: Final, keys: tuple[str, ...], expire_after: str | None) -> None:
    if not callable(on_end):
        raise PlanError(f"on_end needs a function, not {on_end!r}", operation="describe")
    if SUBSTREAM not in keys:
        raise PlanError(
            f"on_end= ends the keys of a substream, and {SUBSTREAM!r} is not among by={list(keys)}",
            operation="describe",
            hint=f"Label the rows with .substream(...) before, and add {SUBSTREAM!r} to by=.",
        )
    if expire_after is not None:
        raise PlanError(
            "on_end= and expire_after= both end keys",
            operation="describe",
            hint="Keep one of them: with on_end= a key ends with its substream.",
        )
