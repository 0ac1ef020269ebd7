"""Signatures and fields as a user writes them: annotations as in the source, defaults as literals, no `self`."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from holdfast.flow.endpoints import SinkDescription, SourceDescription

LINE_MAX = 100

# Classes that a user never names, by what they are to a user.
SHOWN_AS = {
    **{cls.__name__: "SourceDescription" for cls in get_args(SourceDescription)},
    **{cls.__name__: "SinkDescription" for cls in get_args(SinkDescription)},
    "EachKey": "Update",
    "t.StructType": "StructType",
}
_SHOWN_AS = re.compile(rf"\b({'|'.join(map(re.escape, SHOWN_AS))})\b")


@dataclass(frozen=True)
class Field:
    """A field of a class: as a signature would have it, and what the comment beside it says."""

    name: str
    written: str
    says: str

    @property
    def type_only(self) -> str:
        """The field of a thing that a user is given: its default is none of theirs."""
        return self.written.partition(" = ")[0]


def signature(name: str, function: Callable[..., object]) -> str:
    """A call of `function` under a name: on one line where it fits, else a line per parameter."""
    line = one_line(name, function)
    if len(line) <= LINE_MAX:
        return line
    shape = inspect.signature(function)
    return "\n".join([f"{name}(", *(f"    {one}," for one in _parameters(shape)), f"){_returns(shape)}"])


def one_line(name: str, function: Callable[..., object]) -> str:
    """A call of `function` on one line, however long."""
    shape = inspect.signature(function)
    return f"{name}({', '.join(_parameters(shape))}){_returns(shape)}"


def _returns(shape: inspect.Signature) -> str:
    """Nothing for a class, of which everybody knows what it gives."""
    made = shape.return_annotation in (shape.empty, None, "None")
    return "" if made else f" -> {annotation(shape.return_annotation)}"


def _parameters(shape: inspect.Signature) -> Iterator[str]:
    before: object = None
    for name, one in shape.parameters.items():
        if before is one.POSITIONAL_ONLY and one.kind is not one.POSITIONAL_ONLY:
            yield "/"
        if one.kind is one.KEYWORD_ONLY and before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            yield "*"
        before = one.kind
        if name not in ("self", "cls"):
            yield _parameter(one)


def _parameter(one: inspect.Parameter) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    default = "" if one.default is one.empty else f" = {literal(one.default)}"
    return f"{stars}{one.name}: {annotation(one.annotation)}{default}"


def annotation(written: str) -> str:
    """An annotation in the words of the reference. All modules of the API keep theirs as text."""
    return _SHOWN_AS.sub(lambda found: SHOWN_AS[found[0]], written).replace("'", '"')


def literal(value: object) -> str:
    """A default as it would be written."""
    if isinstance(value, str):
        return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"'))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    if isinstance(value, tuple):
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(dict(value)) if isinstance(value, Mapping) else repr(value)


def fields(cls: type) -> list[Field]:
    """The public fields that a class declares, in order, with the comments beside them."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = _comments(source)
    [declared] = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    found = []
    for statement in declared.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            comment = " ".join(comments[line] for line in lines if line in comments)
            found.append(Field(statement.target.id, _written(cls, statement.target.id), _sentence(comment)))
    return [field for field in found if not field.name.startswith("_")]


def _written(cls: type, name: str) -> str:
    """A field with its type, and with its default where that is a plain value."""
    default = vars(cls).get(name, ...)
    plain = default is None or isinstance(default, int | float | str) or default == frozenset()
    return f"{name}: {annotation(cls.__annotations__[name])}{f' = {literal(default)}' if plain else ''}"


def _sentence(comment: str) -> str:
    """A comment as a sentence of its own."""
    return f"{comment[0].upper()}{comment[1:]}." if comment else ""


def _comments(source: str) -> dict[int, str]:
    """Comments by their line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
