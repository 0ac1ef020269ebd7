"""What a stage's code is, as text: two texts differ when the rows that the code gives may."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from holdfast.flow import nodes
from holdfast.flow.nodes import Stateful
from holdfast.flow.own import inner_function


def operator_text(operator: Stateful | None) -> str:
    """An operator in words that change when it does."""
    match operator:
        case nodes.RunningAggregate():
            return f"{operator.keys} {operator.aggregates}{' at the end' if operator.at_end else ''}"
        case nodes.WindowAggregate():
            return f"{operator.keys} {operator.aggregates} {operator.window}"
        case nodes.Dedup():
            return f"{operator.ids} {operator.within_us} {operator.time}"
        case nodes.OwnOperator():
            what = f"{operator.by} {operator.state} {operator.output} {operator.time} {operator.order_by}"
            final = f" {source_text(operator.on_end)}" if operator.on_end else ""
            return f"{what} {operator.expire_us} {source_text(inner_function(operator.function))}{final}"
        case nodes.Substream():
            return f"{operator.labelling} {operator.time}"
        case nodes.Join():
            return f"{operator.matching}"
        case None:
            return "rows"


def source_text(function: Callable[..., object]) -> str:
    """The function as written, without indentation or comments on the way; its code where no source is at hand."""
    try:
        return re.sub(r"\s+", " ", inspect.getsource(function)).strip()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return repr((code.co_code, code.co_consts, code.co_names)) if code else repr(type(function))
