"""Whether the stages of a flow are those that the ledger knows by their names.

Invariants: a stage with committed epochs goes on only with the definition that they were made by; a stage that is named by
its position does not start anew while another of the same kind, with committed epochs, has gone from the flow, because
then it is most likely that one, moved. What a ledger has not recorded cannot be compared, and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.errors import StateSchemaError
from holdfast.core.json import Json
from holdfast.flow.definition import READS, Definition

_WAYS_OUT = (
    "Bring the old definition back, or give the new stage another name with .named(...), which then reads from the start"
    " and needs targets of its own; or start over with `holdfast reset`."
)


@dataclass(frozen=True)
class Known:
    """A stage as the ledger has it."""

    head: int  # the last committed epoch, -1 before the first
    parts: Json
    whole: bool = True  # False where an older Holdfast recorded the state's schema alone


@dataclass(frozen=True)
class Target:
    """What a sink publishes to, and from which stage."""

    stage: str
    target: str


def check_stages(known: Mapping[str, Known], planned: Mapping[str, Definition]) -> None:
    """Raise for the first stage that is not the one that its name stands for."""
    for name, stage in planned.items():
        old = known.get(name)
        if old is not None and old.head >= 0:
            found = _changes(old, stage.parts)
            if found:
                raise _another(name, found, _like(known, planned, name))
        elif not stage.named and (moved := _gone(known, planned, stage.parts)):
            raise _moved(name, moved)


def check_sinks(known: Mapping[str, Target], planned: Mapping[str, Target]) -> None:
    """Raise for the first target that was another stage's: its record counts the epochs of that stage.

    Sinks of one stage may change places: all get the same epochs, and a target's record says which it has.
    """
    owners = {one.target: one.stage for one in known.values()}
    for name, sink in planned.items():
        owner = owners.get(sink.target, sink.stage)
        if owner != sink.stage and known.get(name) != sink:
            raise _other_stage(name, sink.stage, owner)


def _changes(old: Known, parts: Json) -> list[str]:
    names = {*old.parts, *parts} if old.whole else _of_state(old.parts, parts)
    return [
        f"{name}: {old.parts.get(name)} -> {parts.get(name)}"
        for name in sorted(names)
        if old.parts.get(name) != parts.get(name)
    ]


def _of_state(old: Json, parts: Json) -> set[str]:
    """Without state there is nothing to compare, unless there is some now."""
    return set(old) if old else {"operator"} & set(parts)


def _kind(parts: Json) -> Json:
    """What tells stages of one flow apart, wherever they read from; without an operator that is all there is."""
    own = {name: value for name, value in parts.items() if name not in READS}
    return own or parts


def _gone(known: Mapping[str, Known], planned: Mapping[str, Definition], parts: Json) -> list[str]:
    """Stages of the same kind that have committed epochs and are not in the flow any more."""
    return [
        name
        for name, old in known.items()
        if name not in planned and old.head >= 0 and old.whole and _kind(old.parts) == _kind(parts)
    ]


def _like(known: Mapping[str, Known], planned: Mapping[str, Definition], name: str) -> list[str]:
    """Where the stage that bears a name now, and is not the one of the ledger, may have had its state."""
    if planned[name].named:
        return []
    parts = planned[name].parts
    alike = [other for other, old in known.items() if other != name and _kind(old.parts) == _kind(parts)]
    return sorted(alike, key=lambda other: known[other].parts != parts)


def _another(name: str, changes: list[str], alike: list[str]) -> StateSchemaError:
    shifted = (
        f" The name comes from its position in the flow. The ledger has a stage like it under the name {alike[0]!r}: if it is"
        f" that one, write .named({alike[0]!r})."
        if alike
        else ""
    )
    return StateSchemaError(
        f"the state of stage {name!r} was made by another definition ({'; '.join(changes)}).{shifted}",
        operation="register",
        stage=name,
        hint=_WAYS_OUT,
    )


def _moved(name: str, gone: list[str]) -> StateSchemaError:
    names = ", ".join(map(repr, gone))
    return StateSchemaError(
        f"stage {name!r} is new here, by a name that comes from its position; and {names}, which the ledger knows with the"
        " same definition and with committed epochs, has gone from the flow",
        operation="register",
        stage=name,
        hint=f"If it is that stage, write .named({gone[0]!r}), and it goes on where it was. If it is another, give it a name"
        " of its own with .named(...).",
    )


def _other_stage(sink: str, stage: str, before: str) -> StateSchemaError:
    return StateSchemaError(
        f"the target of sink {sink!r} was published to from stage {before!r}, and would now be from stage {stage!r}",
        operation="register",
        stage=stage,
        hint=f"If it is the same stage under another name, write .named({before!r}), and it goes on where it was. If it is"
        " another one, give it a target of its own; or start over with `holdfast reset`.",
    )
