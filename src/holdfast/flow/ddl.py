"""Reads the columns of a schema without Spark: `"id string, qty int, tags array<string>"`.

What is refused here, Spark would refuse too, minutes later. What it takes has the columns that Spark would find; types that
are rare (intervals, geometry) are taken as they are written, and Spark has the last word on them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.core.errors import PlanError

T = TypeVar("T")

# Plain types, by all of the names that Spark has for them.
_PLAIN = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_RARE = ("char", "character", "varchar", "interval", "variant", "void", "time", "geometry", "geography")
_NAMES = (*_PLAIN, *_DECIMALS, *_NESTED, *_RARE)

# What people write who come from elsewhere.
_MEANT = {
    "str": "string",
    "text": "string",
    "object": "string",
    "json": "string",
    "uuid": "string",
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "number": "decimal(38,2)",
    "datetime": "timestamp",
    "datetime64": "timestamp",
    "timestamptz": "timestamp",
    "bytes": "binary",
    "blob": "binary",
    "list": "array<...>",
    "dict": "map<...>",
}
_PRECISION_MAX = 38
_LIKE_IT = "Write it as Spark DDL, such as 'id string, amount double, ts timestamp'."
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>\w+)|(?P<sign>\S))"
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Type:
    """A type: one of Spark's names, with what is in its brackets."""

    name: str
    numbers: tuple[int, ...] = ()  # of a decimal
    parts: tuple[Type, ...] = ()  # of an array, a map, or a struct
    names: tuple[str, ...] = ()  # of a struct's columns
    rare: bool = False  # whether only Spark knows what it is

    @property
    def is_known(self) -> bool:
        """Whether it and all inside it are known without Spark."""
        return not self.rare and all(part.is_known for part in self.parts)

    def __str__(self) -> str:
        if self.numbers:
            return f"{self.name}({','.join(map(str, self.numbers))})"
        if self.name == "struct":
            inner = [f"{quoted(name)}:{part}" for name, part in zip(self.names, self.parts, strict=True)]
            return f"struct<{','.join(inner)}>"
        return f"{self.name}<{','.join(map(str, self.parts))}>" if self.parts else self.name


@dataclass(frozen=True)
class DeclaredColumns:
    """The columns of a schema, in order."""

    columns: tuple[tuple[str, Type], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return tuple(name for name, _ in self.columns)

    def __str__(self) -> str:
        return ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)


def quoted(name: str) -> str:
    """A name as it can stand in a schema."""
    return name if re.fullmatch(r"\w+", name, re.ASCII) else f"`{name.replace('`', '``')}`"


def columns_of(what: str, ddl: object) -> DeclaredColumns:
    """The columns of a schema as a user writes it; `what` is whose they are."""
    if not isinstance(ddl, str):
        raise PlanError(
            f"the schema of {what} is {ddl!r}, not text", operation="describe", hint=f"{_LIKE_IT}"
        )
    found = _Reader(ddl)
    columns = found.schema()
    if found.wrong:
        raise PlanError(
            f"the schema of {what} cannot be read: {'; '.join(found.wrong)}",
            operation="describe",
            hint=" ".join(dict.fromkeys([*found.hints, _LIKE_IT])),
        )
    if not columns:
        raise PlanError(f"the schema of {what} has no columns: {ddl!r}", operation="describe", hint=_LIKE_IT)
    return DeclaredColumns(columns)


class _Stop(Exception):
    """Nothing behind this can be understood."""


@dataclass
class _Reader:
    """Goes through the words of a schema, and notes what is wrong with them."""

    ddl: str
    wrong: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    _at: int = 0

    def __post_init__(self) -> None:
        text = _COMMENT.sub(" ", self.ddl)
        self._tokens = [(str(found.lastgroup), found.group().strip()) for found in _TOKEN.finditer(text)]

    def schema(self) -> tuple[tuple[str, Type], ...]:
        try:
            return self._schema()
        except _Stop:
            return ()

    def _schema(self) -> tuple[tuple[str, Type], ...]:
        if [text.lower() for _, text in self._tokens[:2]] == ["struct", "<"]:
            whole = self._type("the schema")
            self._end()
            return tuple(zip(whole.names, whole.parts, strict=True))
        columns = self._listed(self._column) if self._tokens else []
        self._end()
        return tuple(columns)

    def _listed(self, one: Callable[[], T]) -> list[T]:
        found = [one()]
        while self._takes(","):
            found.append(one())
        return found

    def _column(self) -> tuple[str, Type]:
        name = self._name()
        self._takes(":")
        kind = self._type(f"column {name!r}")
        if self._takes("not"):
            self._needs("null", name)
        if self._takes("comment"):
            self._at += 1
        return name, kind

    def _name(self) -> str:
        kind, text = self._next()
        if kind == "quoted":
            return text[1:-1].replace("``", "`")
        if kind != "word":
            raise self._stop(f"{text!r} stands where the name of a column should")
        if not text.isascii() or self._peek() == "-":
            raise self._stop(
                f"{text + ('-...' if text.isascii() else '')!r} is no plain name", "Put it in back quotes."
            )
        return text

    def _type(self, where: str) -> Type:
        kind, text = self._next(where)
        name = text.lower()
        if kind != "word":
            raise self._stop(f"{text!r} stands where the type of {where} should")
        if name in _NESTED:
            return self._nested(name, where)
        if name in _DECIMALS:
            return self._decimal(where)
        if name in _RARE or (name.startswith("timestamp") and self._peek() in ("(", "with", "without")):
            return self._rare(text)
        if name in _PLAIN:
            return self._plain(name, where)
        return self._unknown(text, where)

    def _plain(self, name: str, where: str) -> Type:
        if name == "string" and self._peek() == "collate":
            return self._rare(name)
        if self._peek() == "(":
            self._note(f"{where} is {name}, which takes no number in brackets")
            self._bracketed()
        return Type(_PLAIN[name])

    def _nested(self, name: str, where: str) -> Type:
        if self._peek() == "<>" or not self._takes("<"):
            raise self._stop(
                f"{where} is {name} of nothing", "Write array<int>, map<string, int> or struct<a: int>."
            )
        if name == "struct":
            columns = [] if self._peek() == ">" else self._listed(self._column)
            self._needs(">", where)
            return Type(
                name, parts=tuple(kind for _, kind in columns), names=tuple(name for name, _ in columns)
            )
        parts = self._listed(lambda: self._type(where))
        if len(parts) != (1 if name == "array" else 2):
            raise self._stop(f"{where} is {name} of {len(parts)} types")
        self._needs(">", where)
        return Type(name, parts=tuple(parts))

    def _decimal(self, where: str) -> Type:
        given = self._bracketed() if self._peek() == "(" else []
        numbers = [int(text) for text in given if text.isdigit()]
        if len(numbers) != len(given) or len(numbers) > 2:
            self._note(
                f"{where} is decimal({', '.join(given)}), and takes digits in all and digits behind the point"
            )
            return Type("decimal", (10, 0))
        precision, scale = [*numbers, *(10, 0)[len(numbers) :]]
        if precision > _PRECISION_MAX or scale > precision:
            many = "more digits behind the point than in all" if scale > precision else "more than 38 digits"
            self._note(f"{where} is decimal({precision},{scale}), which has {many}")
        return Type("decimal", (precision, scale))

    def _rare(self, first: str) -> Type:
        """All words and brackets up to what must follow a type."""
        words = [first.lower()]
        while self._peek() not in ("", ",", ">", "not", "comment"):
            words.append("(" + ",".join(self._bracketed()) + ")" if self._peek() == "(" else self._next()[1])
        return Type(" ".join(words), rare=True)

    def _unknown(self, text: str, where: str) -> Type:
        like = difflib.get_close_matches(text.lower(), _NAMES, n=1)
        meant = _MEANT.get(text.lower()) or (like[0] if like else None)
        self._note(
            f"{where} has the type {text!r}, which Spark does not have", meant and f"Say {meant} for {text}."
        )
        self._rare(text)
        return Type("string")

    def _bracketed(self) -> list[str]:
        self._at += 1
        found = []
        while not self._takes(")"):
            found.append(self._next()[1])
        return [text for text in found if text != ","]

    def _end(self) -> None:
        if self._at < len(self._tokens):
            raise self._stop(f"{self._tokens[self._at][1]!r} stands where a comma or the end should")

    def _next(self, where: str = "") -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._stop(f"it ends where {f'the type of {where}' if where else 'a column'} should stand")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at][1].lower() if self._at < len(self._tokens) else ""

    def _takes(self, text: str) -> bool:
        found = self._peek() == text
        self._at += found
        return found

    def _needs(self, text: str, where: str) -> None:
        if not self._takes(text):
            raise self._stop(f"{text!r} is missing in {where}")

    def _note(self, wrong: str, hint: str | None = None) -> None:
        self.wrong.append(wrong)
        self.hints += [hint] if hint else []

    def _stop(self, wrong: str, hint: str | None = None) -> _Stop:
        self._note(wrong, hint)
        return _Stop()
