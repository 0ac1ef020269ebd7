"""Modules beside a flow whose names are taken: a flow that imports one is told so before it runs.

The flow's directory is the last on the path (core/python_path.py), so an import of `types` finds Python's own, and never a
`types.py` of the user's. Without a word the flow would run with another module than the one that its author sees.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from holdfast.core.errors import FlowImportError

# What runs the flow needs these under their names, and a flow's file is a module under its own.
_NEEDED = frozenset({"holdfast", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "sqlalchemy", "xxhash"})


def refuse_taken_file(flow: Path) -> None:
    """Refuse a flow's file that has the name of another module, or imports one from beside itself that has."""
    if flow.stem in sys.stdlib_module_names or flow.stem in _NEEDED:
        raise _taken(f"{flow} has the name of {_owner(flow.stem)}", flow)
    _refuse_taken_imports(flow, flow.parent)


def refuse_taken_module(name: str, directory: Path) -> None:
    """The same for a flow's module: what it imports from this directory, and its own package there."""
    top = name.partition(".")[0]
    here, file = _beside(directory, top), directory / f"{name.replace('.', '/')}.py"
    if here is not None and not _is_found(top, here, directory):
        raise _taken(f"{here} has the name of {_owner(top)}", here)
    if file.is_file():
        _refuse_taken_imports(file, directory)


def _refuse_taken_imports(flow: Path, directory: Path) -> None:
    todo, seen = [flow], {flow}
    while todo:
        file = todo.pop()
        for name, line in _imports(file):
            beside = _beside(directory, name)
            if beside is None or beside in seen:
                continue
            if not _is_found(name, beside, directory):
                raise _taken(
                    f"line {line} of {file} imports {name!r}, which is the name of {_owner(name)} and of {beside}",
                    beside,
                )
            seen.add(beside)
            todo.append(beside)


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, by the first part of their names, and where."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        # Whoever imports the file says what is wrong with it.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno


def _beside(directory: Path, name: str) -> Path | None:
    choices = (directory / name / "__init__.py", directory / f"{name}.py")
    return next((path for path in choices if path.is_file()), None)


def _is_found(name: str, beside: Path, directory: Path) -> bool:
    """Whether an import of the name ends at this file, with its directory last on the path."""
    if name in sys.stdlib_module_names:
        return False
    spec = PathFinder.find_spec(name, [*sys.path, str(directory)])
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == beside.resolve()


def _owner(name: str) -> str:
    if name in sys.stdlib_module_names:
        return "a module of Python's own"
    spec = PathFinder.find_spec(name)
    return (
        f"a module that is installed, {spec.origin}" if spec and spec.origin else "a module that is installed"
    )


def _taken(happened: str, file: Path) -> FlowImportError:
    found = file.parent if file.name == "__init__.py" else file
    return FlowImportError(
        happened,
        operation="import",
        hint=f"Rename {found}: Python and Spark import the other one by this name.",
    )
