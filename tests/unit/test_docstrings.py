"""The docstring of everything that a user calls names each of its arguments, and says what it raises.

What is looked at is what a call does when a flow is described: the body, and the functions of ours that it calls directly.
A body that raises one of Holdfast's errors, or calls a function that does, has a docstring with `Raises`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest

import holdfast as hf
from holdfast.core import errors
from reference import contents

ERRORS = {name for name, thing in vars(errors).items() if isinstance(thing, type)}


def told() -> dict[str, Callable[..., object]]:
    """By the name that a user writes, `hf.Flow`, the functions of `hf`, and the methods of what they give."""
    things = {name: contents.thing(name) for name in contents.entries()}
    ours = {
        name: thing for name, thing in things.items() if name.partition(".")[0] in ("hf", *contents.CLASSES)
    }
    return {
        "hf.Flow": hf.Flow,
        **{name: thing for name, thing in ours.items() if isinstance(thing, FunctionType)},
    }


def unmentioned(thing: Callable[..., object]) -> list[str]:
    """Parameters that the docstring does not have in code, `so`."""
    code = " ".join(re.findall(r"`([^`]+)`", thing.__doc__ or ""))
    names = [name for name in inspect.signature(thing).parameters if name != "self"]
    return [name for name in names if not re.search(rf"(?<!\w){name}(?!\w)", code)]


def raises(function: FunctionType, deeper: bool = True) -> bool:
    """Whether a function raises an error of ours, or one that it calls directly does."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    thrown = [
        node.exc.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    ]
    if any(ast.unparse(error).rpartition(".")[2] in ERRORS for error in thrown):
        return True
    return deeper and any(raises(other, False) for other in called(function, tree))


def called(function: FunctionType, tree: ast.AST) -> Iterator[FunctionType]:
    """The functions of ours that a body calls by their name, by that of their module, or as another method of a stream."""
    known = {**function.__globals__, "self": contents.CLASSES["stream"]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            found = getattr(known.get(owner), name, None) if owner else known.get(name)
            if isinstance(found, FunctionType) and found.__module__.startswith("holdfast."):
                yield found


@pytest.mark.parametrize("name", told())
def test_every_argument_and_error_is_told(name: str) -> None:
    thing = told()[name]
    assert unmentioned(thing) == [], f"the docstring of {name} says nothing of them"
    function = thing.__init__ if isinstance(thing, type) else thing
    if raises(function):
        said = re.search(r"Raises `(hf\.)?\w+Error`", thing.__doc__ or "")
        assert said, f"the docstring of {name} does not say what it raises"


def test_what_is_not_told_is_found() -> None:
    def planted(first: str, second: int = 1) -> None:
        """Takes `first`."""
        raise hf.PlanError("no")

    assert unmentioned(planted) == ["second"]
    assert raises(planted)
    assert raises(hf.parquet), "its path is checked by a function that it calls"
    assert not raises(hf.gap)
