"""Finds a flow in a file or module, and sees to it that the file's functions reach Spark's workers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

from holdfast.core.errors import FlowImportError, HoldfastError
from holdfast.core.python_path import put_last
from holdfast.flow import nodes
from holdfast.flow.flow import FlowDescription
from holdfast.flow.own import inner_function
from holdfast.runtime.neighbours import refuse_taken_file, refuse_taken_module

_importing = 0


def is_importing() -> bool:
    """Whether a flow file is being imported by Holdfast just now."""
    return _importing > 0


def load(reference: str) -> FlowDescription:
    """The flow that `path.py[:name]` or `module:name` names."""
    target, _, name = reference.partition(":")
    with _import_in_progress(reference):
        module = _from_file(Path(target)) if target.endswith(".py") else _from_path(target)
    return _chosen(reference, module, name)


def import_file(path: Path) -> ModuleType:
    """A file as a module."""
    with _import_in_progress(str(path)):
        return _from_file(path)


def _chosen(reference: str, module: ModuleType, name: str) -> FlowDescription:
    flows = {key: value for key, value in vars(module).items() if isinstance(value, FlowDescription)}
    if name:
        if name in flows:
            return flows[name]
        other = vars(module).get(name)
        kind = "" if other is None else f"; {name!r} is of type {type(other).__name__}"
        raise _not_found(reference, f"there is no flow named {name!r} in it{kind}", flows)
    different = {id(flow) for flow in flows.values()}
    if len(different) == 1:
        return next(iter(flows.values()))
    raise _not_found(reference, f"it holds {len(different)} flows" if flows else "it holds no flow", flows)


def ship_module_by_value(flow: FlowDescription) -> None:
    """Functions of the flow's own file are pickled whole: Spark's workers cannot import that file."""
    from pyspark import cloudpickle

    installed = {"holdfast", "pyspark", "builtins", "__main__"}
    for function in _functions(flow):
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        if module is not None and module.__name__.partition(".")[0] not in installed:
            cloudpickle.register_pickle_by_value(module)


def _functions(flow: FlowDescription) -> list[object]:
    found: list[object] = []
    todo = [node for node, _, _ in flow.sinks] + [node for node in flow.loops.values() if node]
    seen: set[nodes.Node] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, nodes.Transform):
            found.append(node.function)
        if isinstance(node, nodes.OwnOperator):
            found.append(inner_function(node.function))
        todo += nodes.upstreams(node)
    return found


@contextmanager
def _import_in_progress(reference: str) -> Iterator[None]:
    global _importing
    _importing += 1
    try:
        # What the file prints is not what a command prints: stdout may be read by a program.
        with redirect_stdout(sys.stderr):
            yield
    except HoldfastError:
        raise
    except SystemExit as error:
        raise FlowImportError(
            f"{reference} ends the process while it is imported, with status {error.code!r}",
            operation="import",
            hint='Put the call below `if __name__ == "__main__":`.',
        ) from error
    except Exception as error:
        raise FlowImportError(
            f"{reference} cannot be imported: {type(error).__name__}: {error}",
            operation="import",
            hint=_missing(error),
        ) from error
    finally:
        _importing -= 1


def _missing(error: Exception) -> str | None:
    """What to do about a module that is not there; a file of the user's own is only looked for beside the flow."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    return (
        f"Install it for {sys.executable}, or, if {error.name.partition('.')[0]}.py is yours, put it beside the "
        "flow's file or on PYTHONPATH."
    )


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FlowImportError(
            f"there is no file {path}", operation="import", hint="Write path.py, path.py:name or module:name."
        )
    refuse_taken_file(path)
    put_last(path.parent)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_path(name: str) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise FlowImportError(
            f"{name!r} is neither a Python file nor a module",
            operation="import",
            hint="Write path.py, path.py:name or module:name.",
        )
    refuse_taken_module(name, Path.cwd())
    put_last(Path.cwd())
    return importlib.import_module(name)


def _not_found(reference: str, why: str, flows: dict[str, FlowDescription]) -> FlowImportError:
    file = reference.partition(":")[0]
    choices = ", ".join(f"{file}:{name}" for name in flows)
    return FlowImportError(
        f"{reference} names no flow: {why}",
        operation="import",
        hint=f"Choose one: {choices}." if flows else 'Make one at its top level: flow = hf.Flow("name").',
    )
