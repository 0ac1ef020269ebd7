"""What a function of the user's is made of: its own text, and all else of the user's that it reaches.

Pieces have names that a person knows (`helper g`, `global LIMIT`), and digests. Invariants: the same code gives the same
pieces in every process, so nothing is told by its address, by its hash or by the order of a set; nothing is called and
nothing imported to find out; what cannot be looked into (a connection, a lock) counts by its type. Installed packages and
the standard library are left out: they change with the environment, not with the flow.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from tokenize import TokenError
from typing import Any

from holdfast.core import limits
from holdfast.flow.own import EachKey

# Values whose repr says all of them, and says it alike everywhere.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...))
_PLAIN_MODULES = frozenset(
    (
        "datetime",
        "decimal",
        "fractions",
        "pathlib",
        "pathlib._local",
        "re",
        "uuid",
        "zoneinfo",
        "pyspark.sql.types",
    )
)
_Container = list | tuple | set | frozenset | dict  # type: ignore[type-arg]
_DIGEST_BYTES = 8


def pieces_of(function: Callable[..., object], what: str) -> dict[str, str]:
    """The pieces of a function that the flow calls `what`, each by its name, as digests."""
    walk = _Walk(function)
    walk.visit(function, "")
    name = f"{what} `{_name(function)}`"
    found: dict[str, list[str]] = {}
    for label, text in walk.pieces:
        found.setdefault(f"{name}: {label}" if label else name, []).append(text)
    return {label: digest("\n".join(texts)) for label, texts in found.items()}


def digest(content: str | bytes) -> str:
    """A short name for what may be long."""
    data = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


class _Walk:
    """Collects pieces in the order in which they are come to, each object once."""

    def __init__(self, root: object) -> None:
        self.pieces: list[tuple[str, str]] = []
        self._root = root
        self._seen: dict[int, object] = {}  # the objects themselves, so that no number is used twice
        self._inside: set[int] = set()  # containers that are being looked into

    def visit(self, value: object, label: str) -> None:
        """Add what a value is under a label, and what it reaches under labels of its own."""
        self.pieces.append((label, self._text(value, label, 0)))

    def _text(self, value: object, label: str, depth: int) -> str:
        """A value as text; functions and classes on the way become pieces."""
        if isinstance(value, re.Pattern):
            return f"pattern {value.pattern!r} {value.flags}"
        if isinstance(value, _PLAIN) or type(value).__module__ in _PLAIN_MODULES:
            return repr(value)
        if depth > limits.CODE_DEPTH_MAX or id(value) in self._inside:
            return _type_name(value)
        if isinstance(value, _Container):
            return self._container(value, label, depth)
        if id(value) in self._seen:
            return f"again {_name(value)}"
        self._seen[id(value)] = value
        return self._object(value, label, depth)

    def _container(self, value: _Container, label: str, depth: int) -> str:
        def texts(items: Iterable[object]) -> list[str]:
            # Lists of a million numbers are not unheard of: what is plain is not looked at any further.
            return [
                repr(item) if type(item) in _PLAIN else self._text(item, label, depth + 1) for item in items
            ]

        self._inside.add(id(value))
        try:
            if isinstance(value, dict):
                pairs = zip(texts(value.keys()), texts(value.values()), strict=True)
                return f"dict {sorted(f'{key}: {item}' for key, item in pairs)}"
            if isinstance(value, set | frozenset):
                return f"set {sorted(texts(value))}"
            return f"{type(value).__name__} {texts(value)}"
        finally:
            self._inside.discard(id(value))

    def _object(self, value: object, label: str, depth: int) -> str:
        match value:
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return f"{self._text(value.__func__, label, depth)} of {self._text(value.__self__, label, depth + 1)}"
            case functools.partial():
                given = [value.func, value.args, value.keywords]
                return " ".join(self._text(one, label, depth + 1) for one in given)
            case type():
                return self._class(value)
            case types.ModuleType() | types.BuiltinFunctionType():
                return f"{type(value).__name__} {value.__name__}"
            case Enum():
                return f"{_type_name(value)}.{value.name}"
            case _:
                return self._instance(value, label, depth)

    def _function(self, function: types.FunctionType) -> str:
        """Its text; what it reaches are pieces. The text of installed code is its name."""
        self._wrapped(function)
        if not is_own(function.__code__.co_filename) and function is not self._root:
            kind = vars(function).get("returnType")  # of what Spark makes of a function
            return f"{function.__module__}.{function.__qualname__} {kind if kind is None else repr(kind)}"
        self._reached(function)
        return source_text(function.__code__)

    def _wrapped(self, function: object) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.visit(wrapped, f"helper `{_name(wrapped)}`")

    def _reached(self, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._piece(name, cell.cell_contents, "closure")
            except ValueError:
                continue  # it has no value yet
        for name, value in [*(function.__kwdefaults__ or {}).items(), *_positional_defaults(function)]:
            self._piece(name, value, "default")
        self._globals(function.__code__, function.__globals__)

    def _globals(self, code: types.CodeType, known: dict[str, object]) -> None:
        codes = list(_codes(code))
        names = sorted({name for one in codes for name in one.co_names})
        for name in names:
            value = known.get(name)
            if isinstance(value, types.ModuleType):
                self._of_module(value, names)
            elif name in known:
                self._piece(name, value, "global")
        for module in sorted({module for one in codes for module in _imported(one)}):
            self._file(module)

    def _of_module(self, module: types.ModuleType, names: list[str]) -> None:
        """What is taken from a module of the user's: any of its names that the code mentions."""
        if not is_own(getattr(module, "__file__", None) or ""):
            return
        for name in names:
            if name in vars(module):
                self._piece(name, vars(module)[name], "global")

    def _piece(self, name: str, value: object, where: str) -> None:
        inner = hasattr(value, "__code__") or isinstance(value, type)
        if isinstance(value, types.ModuleType) or (isinstance(value, type) and not _is_own_class(value)):
            return
        self.visit(value, f"{'helper' if inner else where} `{name}`")

    def _file(self, module: str) -> None:
        """A module that is imported inside a function counts as a whole: it may not have been imported yet."""
        path = _file_of(module)
        if path is not None and is_own(str(path)):
            self.pieces.append((f"module `{module}`", path.read_text(errors="replace")))

    def _class(self, kind: type) -> str:
        if not _is_own_class(kind):
            return f"{kind.__module__}.{kind.__qualname__}"
        for base in kind.__bases__:
            self._piece(base.__name__, base, "base")
        for member in vars(kind).values():
            function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(function, types.FunctionType):
                self._reached(function)
        return source_text(kind)

    def _instance(self, value: object, label: str, depth: int) -> str:
        """An object with a digest of its own, or one of the user's classes by its fields; all else by its type."""
        if (data := _data_digest(value)) is not None:
            return f"{_type_name(value)} {data}"
        self._wrapped(value)
        if not (_is_own_class(type(value)) or isinstance(value, EachKey)):
            return _type_name(value)
        self._piece(type(value).__name__, type(value), "class")
        fields = _fields(value)
        texts = [f"{name}: {self._text(fields[name], label, depth + 1)}" for name in sorted(fields)]
        return f"{_type_name(value)} {texts}"


def source_text(thing: Callable[..., object] | types.CodeType | type) -> str:
    """Code as written, whatever its indentation; its instructions where no source is at hand."""
    try:
        return re.sub(r"\s+", " ", inspect.getsource(thing)).strip()
    except (OSError, TypeError, SyntaxError, TokenError):
        return _instructions(thing) if isinstance(thing, types.CodeType) else repr(thing)


def is_own(file: str) -> bool:
    """Whether a file is the user's: it belongs to no installed package, not to Python and not to Holdfast."""
    if file.startswith("<"):
        return not file.startswith("<frozen")
    path = Path(file).absolute()
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(file) and not installed and not any(path.is_relative_to(home) for home in _homes())


@functools.cache
def _homes() -> tuple[Path, ...]:
    found = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    return (*(Path(one).absolute() for one in sorted(found)), Path(__file__).absolute().parents[1])


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _imported(code: types.CodeType) -> list[str]:
    return [str(one.argval) for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"]


def _file_of(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    try:
        spec = None if loaded else importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    name = getattr(loaded, "__file__", None) or (spec.origin if spec else None)
    return Path(name) if name and Path(name).is_file() else None


def _instructions(code: types.CodeType) -> str:
    """Instructions and constants; nested functions among the constants would show their addresses."""
    parts = [
        (one.co_code.hex(), [c for c in one.co_consts if isinstance(c, _PLAIN)], one.co_names)
        for one in _codes(code)
    ]
    return repr(parts)


def _positional_defaults(function: types.FunctionType) -> list[tuple[str, object]]:
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return list(zip(names[len(names) - len(values) :], values, strict=True))


def _data_digest(value: object) -> str | None:
    """Arrays and tables by what they hold; None for anything else."""
    package = type(value).__module__.partition(".")[0]
    try:
        return _DATA[package](value) if package in _DATA else None
    except Exception:
        # A kind of data that cannot be written as text: it counts by its type, like all that is not known here.
        return None


def _of_numpy(value: Any) -> str:
    data = value.tolist() if value.dtype.hasobject else value.tobytes()
    return f"{value.dtype} {value.shape} {digest(data if isinstance(data, bytes) else repr(data))}"


def _of_pandas(value: Any) -> str:
    import pyarrow as pa

    frame = value if hasattr(value, "columns") else value.to_frame()
    return _of_arrow(pa.Table.from_pandas(frame))


def _of_arrow(value: Any) -> str:
    if hasattr(value, "to_pydict"):
        return f"{value.schema} {digest(repr(value.to_pydict()))}"
    return f"{value.type} {digest(repr(value.tolist()))}" if hasattr(value, "tolist") else str(value)


_DATA: dict[str, Callable[[Any], str]] = {"numpy": _of_numpy, "pandas": _of_pandas, "pyarrow": _of_arrow}


def _fields(value: object) -> dict[str, object]:
    slots = [
        name
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", ())
        if hasattr(value, name)
    ]
    return {
        **{name: getattr(value, name) for name in slots if name != "__dict__"},
        **getattr(value, "__dict__", {}),
    }


def _is_own_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or is_own(getattr(module, "__file__", None) or "")


def _type_name(value: object) -> str:
    """A class of the user's without its module: a file that is run by itself has another than one that is imported."""
    kind = type(value)
    return kind.__qualname__ if _is_own_class(kind) else f"{kind.__module__}.{kind.__qualname__}"


def _name(function: object) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", type(inner).__name__)
