"""Finds a flow in a file or module, and sees to it that the file's functions reach Spark's workers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from holdfast.core.errors import FlowImportError, HoldfastError
from holdfast.flow import nodes
from holdfast.flow.flow import FlowDescription
from holdfast.flow.own import inner_function

_importing = 0


def is_importing() -> bool:
    """Whether a flow file is being imported by Holdfast just now."""
    return _importing > 0


def load(reference: str) -> FlowDescription:
    """The flow that `path.py[:name]` or `module:name` names."""
    target, _, name = reference.partition(":")
    with _import_in_progress(reference):
        module = _from_file(Path(target)) if target.endswith(".py") else _from_path(target)
    flows = {key: value for key, value in vars(module).items() if isinstance(value, FlowDescription)}
    if name:
        if name not in flows:
            raise _not_found(reference, f"there is no flow named {name!r} in it", flows)
        return flows[name]
    if len({id(flow) for flow in flows.values()}) != 1:
        raise _not_found(reference, f"it holds {len(flows)} flows", flows)
    return next(iter(flows.values()))


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
    todo = [node for node, _, _ in flow.sinks]
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
        if isinstance(node, nodes.Union):
            todo += node.upstreams
        elif not isinstance(node, nodes.Source):
            todo.append(node.upstream)
    return found


@contextmanager
def _import_in_progress(reference: str) -> Iterator[None]:
    global _importing
    _importing += 1
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise FlowImportError(
            f"{reference} cannot be imported: {type(error).__name__}: {error}", operation="import"
        ) from error
    finally:
        _importing -= 1


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FlowImportError(f"there is no file {path}", operation="import")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _from_path(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def _not_found(reference: str, why: str, flows: dict[str, FlowDescription]) -> FlowImportError:
    names = ", ".join(flows) or "none"
    return FlowImportError(
        f"{reference} names no flow: {why}",
        operation="import",
        hint=f"Flows in it: {names}. Write path.py:name.",
    )
