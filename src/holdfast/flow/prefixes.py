"""What a stage reads, and what happens to the rows before its operator: a tree of inputs, steps and unions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.flow.nodes import Transformation, name_of


@dataclass(frozen=True)
class Input:
    """What a prefix reads: a source's ordinals, or the epochs of another stage's port.

    A source has the rows of its items, and on its port `quarantine` what is wrong with them. A table is no input of a
    stage: it has no positions, and stands beside the inputs where their rows are enriched with it.
    """

    kind: str  # "source" or "channel"; "table"
    name: str
    port: str = ""

    @property
    def id(self) -> str:
        """The input as the ledger spells it."""
        if self.kind == "channel":
            return f"channel:{self.name}.{self.port}"
        return f"source:{self.name}#{self.port}" if self.port else f"source:{self.name}"


@dataclass(frozen=True)
class Read:
    """A leaf of a prefix."""

    input: Input
    feedback: bool = False  # whether its rows come back from a stage further on
    as_rows: bool = False  # whether the flow says that each change is a row, should they replace rows


@dataclass(frozen=True)
class Apply:
    """A step of a prefix."""

    child: Prefix
    function: Transformation


@dataclass(frozen=True)
class Concat:
    """Several prefixes, columns matched by name."""

    children: tuple[Prefix, ...]


Prefix = Read | Apply | Concat


def leaves(prefix: Prefix) -> list[Input]:
    """The inputs of a prefix, as often as it reads them."""
    return [read.input for read in reads(prefix)]


def reads(prefix: Prefix) -> list[Read]:
    """The leaves of a prefix, in order."""
    match prefix:
        case Read():
            return [prefix]
        case Apply(child=child):
            return reads(child)
        case Concat(children=children):
            return [read for child in children for read in reads(child)]


def taken_as_rows(prefix: Prefix) -> Prefix:
    """The same prefix, of whose inputs each change is a row."""
    match prefix:
        case Read():
            return replace(prefix, as_rows=True)
        case Apply(child=child):
            return replace(prefix, child=taken_as_rows(child))
        case Concat(children=children):
            return Concat(tuple(taken_as_rows(child) for child in children))


def untouched(prefix: Prefix, origin: Input) -> bool:
    """Whether no step of the user's stands between an input and the end of a prefix."""
    match prefix:
        case Read():
            return True
        case Apply(child=child):
            return origin not in leaves(child)
        case Concat(children=children):
            return all(untouched(child, origin) for child in children)


def functions(prefix: Prefix) -> list[Transformation]:
    """The user's steps, in order."""
    match prefix:
        case Read():
            return []
        case Apply(child=child, function=function):
            return [*functions(child), function]
        case Concat(children=children):
            return [function for child in children for function in functions(child)]


def describe_prefix(prefix: Prefix) -> str:
    """What is read, and by which steps it passes, by their names."""
    match prefix:
        case Read(input=origin):
            return origin.id
        case Apply(child=child, function=function):
            return f"{describe_prefix(child)} > {name_of(function)}"
        case Concat(children=children):
            return f"[{', '.join(describe_prefix(child) for child in children)}]"
