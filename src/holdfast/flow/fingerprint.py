"""What a stage's description is, as text: two texts differ when the rows that it gives may."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.flow import nodes
from holdfast.flow.code import digest, pieces_of
from holdfast.flow.nodes import Stateful, Transformation
from holdfast.flow.own import inner_function
from holdfast.flow.prefixes import Prefix, describe_prefix, functions
from holdfast.flow.verbs import Verb

# Fingerprints of other versions are of something else: they tell nothing about those of this one.
_VERSION = "2."


def fingerprint_of(text: str, code: Mapping[str, str]) -> str:
    """A short name that changes when a description or a piece of code does."""
    return f"{_VERSION}{digest(f'{text} {sorted(code.items())}')}"


def is_other_code(recorded: str, now: str) -> bool:
    """Whether what was recorded was surely made by other code; what an older Holdfast recorded may have been the same."""
    return recorded != now and recorded.startswith(_VERSION)


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
            return f"{what} {operator.expire_us}"
        case nodes.Substream():
            return f"{operator.labelling} {operator.time}"
        case nodes.Join():
            return f"{operator.matching}"
        case None:
            return "rows"


def _pieces(function: Transformation) -> dict[str, str]:
    if isinstance(function, Verb):
        return {f"`{function}`": digest(str(function))}
    return pieces_of(function, "transform")


def code_of(sides: tuple[Prefix, ...], operator: Stateful | None) -> dict[str, str]:
    """The user's code in a stage: digests, by what a person calls each piece."""
    found = [_pieces(function) for prefix in sides for function in functions(prefix)]
    if isinstance(operator, nodes.OwnOperator):
        found.append(pieces_of(inner_function(operator.function), "function"))
        found += [pieces_of(operator.on_end, "on_end")] if operator.on_end else []
    together: dict[str, str] = {}
    for pieces in found:
        for label, piece in pieces.items():
            together[label] = digest(together[label] + piece) if label in together else piece
    steps = " & ".join(describe_prefix(prefix) for prefix in sides)
    return {**together, "the order of its steps": digest(steps)} if together else {}
