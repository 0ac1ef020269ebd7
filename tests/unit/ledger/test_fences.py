"""The fence comes first: whoever has lost its place is refused before its write has done, or looked at, anything.

A write that has no fence stands in `WITHOUT_FENCE` with the reason why it needs none.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast
from holdfast import ledger as ledger_package
from holdfast.core.errors import FencedError
from holdfast.ledger import epochs, holder
from holdfast.ledger.epochs import Commit
from holdfast.ledger.ledger import Ledger
from registered import register_stage

SRC = Path(holdfast.__file__).parent

# By what a writer is known in the signature of its write.
WRITERS = {"generation", "supervisor", "row", "commit"}
FENCES = {"fence_stage", "_fence_generation", "settle_attempt", "fence_supervisor"}
TABLES_OF_FENCES = ("stages", "groups", "flow")
CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE")

WITHOUT_FENCE = {
    "ledger/ledger.py:write": "it is the fence, for what a group does",
    "ledger/holder.py:take": "it raises the generation: from here on others are refused",
    "ledger/holder.py:supervise": "the same",
    "ledger/source_schemas.py:record_inferred": "the first to come decides, whoever it is; nothing depends on it yet",
    "ledger/groups.py:update_worker": "what a worker says about itself changes nobody's place",
    "ledger/groups.py:note_process": "a process that was started is to be known, also if its starter was replaced",
    "ledger/groups.py:processes_ended": "that a process has ended is so, whoever has seen it",
    "ledger/groups.py:ask_for_failover": "a wish of somebody outside; the supervisor decides",
    "ledger/pins.py:unpin": "a reader's own pins",
    "ledger/readers.py:writing": "cursors and pins of readers outside the flow, and wishes of persons",
    "runtime/pinning.py:base_state": "pins: a file stays longer than it has to, and no longer than a minute",
    "runtime/rehearsal.py:_material": "the same",
}


def functions_of_the_ledger() -> Iterator[Callable[..., object]]:
    """All that take a ledger, to read or to write."""
    for module in pkgutil.iter_modules(ledger_package.__path__, f"{ledger_package.__name__}."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            function = inspect.unwrap(found)
            annotations = [one.annotation for one in inspect.signature(function).parameters.values()]
            if function.__module__ == module.name and "Ledger" in annotations:
                yield found


FENCED = [one for one in functions_of_the_ledger() if WRITERS & inspect.signature(one).parameters.keys()]


class Untouched:
    """An argument that nobody may look at: it has nothing, and cannot even be gone through."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.mark.parametrize(
    "write", FENCED, ids=lambda one: f"{one.__module__.rpartition('.')[2]}.{one.__name__}"
)
def test_the_fence_is_the_first_statement(ledger: Ledger, write: Callable[..., object]) -> None:
    generation = holder.take(ledger, "flow")
    register_stage(ledger, generation, "s", {"keys": "k"}, ["source:in"])
    with ledger.read() as tx:
        row = epochs.stage_row(tx, "s")
    mine = {"ledger": ledger, "generation": generation, "supervisor": generation, "row": row}
    mine["commit"] = Commit(row, 0, "an attempt", {}, None, {})
    holder.take(ledger, "flow", by_force=True)
    statements: list[str] = []
    note = lambda *seen: statements.append(seen[2])  # noqa: E731
    sa.event.listen(ledger.engine, "before_cursor_execute", note)
    arguments = {name: mine.get(name, Untouched()) for name in named(write)}
    with pytest.raises(FencedError):
        write(**arguments)
    first, *others = [statement for statement in statements if not statement.startswith(("BEGIN", "PRAGMA"))]
    assert first.startswith(tuple(f"UPDATE {table} SET" for table in TABLES_OF_FENCES))
    assert [statement for statement in others if statement.startswith(CHANGES)] == []


def named(write: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(write).parameters.values()
    return [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]


def unfenced(source: str) -> Iterator[str]:
    """The functions that open a write without a fence as its first statement."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.With) and "unfenced_write()" in ast.unparse(node.items[-1].context_expr):
                first = node.body[0].body[0] if isinstance(node.body[0], ast.Try) else node.body[0]
                call = first.value if isinstance(first, ast.Expr) else None
                name = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
                if name not in FENCES:
                    yield function.name


def test_the_detector_sees_a_write_before_its_fence() -> None:
    opened = "def f(ledger):\n  with ledger.unfenced_write() as tx:\n    "
    assert list(unfenced(f"{opened}tx.execute(x)\n    fence_stage(tx, row)")) == ["f"]
    assert list(unfenced(f"{opened}epochs.fence_stage(tx, row)\n    tx.execute(x)")) == []
    assert list(unfenced(f"{opened}try:\n      fence_stage(tx, row)\n    except E:\n      raise")) == []


def test_every_write_without_a_fence_says_why_it_needs_none() -> None:
    files = [file for file in sorted(SRC.rglob("*.py")) if SRC / "bench" not in file.parents]
    found = {f"{file.relative_to(SRC)}:{name}" for file in files for name in unfenced(file.read_text())}
    assert found == WITHOUT_FENCE.keys()
