"""Tells an error: what, where, whether it heals by itself, and what to do; as text or as JSON, on stderr."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from types import TracebackType

import typer

import holdfast
from holdfast.core.errors import FlowError, FlowImportError, HoldfastError
from holdfast.core.json import Json
from holdfast.runtime import loader

TOLD, MISTYPED, FAULT = 1, 2, 70

# What Typer raises for a mistake in the command; its own name for it differs from version to version.
UsageError = typer.BadParameter.__mro__[1]

_OURS = str(Path(holdfast.__file__).parent)
_debug = False


def show_tracebacks(wanted: bool) -> None:
    """Have whole tracebacks shown with errors from here on."""
    global _debug
    _debug = wanted


def tell(error: Exception, *, as_json: bool) -> int:
    """Say what went wrong, and with which status the process should end."""
    if isinstance(error, UsageError):
        return _say({"kind": "UsageError", "message": error.format_message()}, MISTYPED, as_json)  # type: ignore[attr-defined]
    if isinstance(error, HoldfastError):
        return _say(_facts(error), TOLD, as_json)
    # Nobody foresaw it, so whoever mends it needs to see where it came from.
    facts = {"kind": type(error).__name__, "message": str(error), "traceback": _whole(error)}
    return _say({**facts, "hint": "This is a fault in Holdfast or in what it runs on."}, FAULT, as_json)


def _facts(error: HoldfastError) -> Json:
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "stage": error.stage,
        "epoch": error.epoch,
        "operation": error.operation,
        "line": _line(error) if isinstance(error, FlowError) else None,
        "heals": error.heals,
        "hint": error.hint,
        "traceback": _whole(error) if _debug else _of_the_flow(error),
    }


def _say(facts: Json, status: int, as_json: bool) -> int:
    known = {name: facts.get(name) for name in _FIELDS}
    if as_json:
        print(json.dumps({"error": {**known, "heals": bool(known["heals"])}}), file=sys.stderr)
        return status
    if known["traceback"]:
        print(known["traceback"].rstrip(), file=sys.stderr)
    lines = [f"{known['kind']}: {known['message']}"]
    where = [f"stage {known['stage']}"] if known["stage"] else []
    where += [f"epoch {known['epoch']}"] if known["epoch"] is not None else []
    where += [known["operation"]] if known["operation"] else []
    lines += [f"  where: {', '.join(where)}"] if where else []
    lines += [f"  line:  {known['line']}"] if known["line"] else []
    if known["heals"] is not None:
        lines.append(f"  heals: {'yes, by itself' if known['heals'] else 'not by itself'}")
    lines += [f"  hint:  {known['hint']}"] if known["hint"] else []
    print("\n".join(lines), file=sys.stderr)
    return status


_FIELDS = ("kind", "message", "stage", "epoch", "operation", "line", "heals", "hint", "traceback")


def _whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _of_the_flow(error: HoldfastError) -> str | None:
    """What the flow's own file raised while it was imported, from its first line on; our frames say nothing there."""
    cause = error.__cause__
    if not isinstance(error, FlowImportError) or cause is None:
        return None
    trace = cause.__traceback__
    while trace and _is_ours(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(cause), cause, trace))


def _line(error: HoldfastError) -> str | None:
    """The line of the flow's file that was running when the error was raised."""
    found, inside, trace = None, False, error.__traceback__
    while trace:
        inside = inside or trace.tb_frame.f_code.co_filename == loader.__file__
        if inside and not _is_ours(trace):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _is_ours(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_code.co_filename
    return name.startswith((_OURS, "<frozen importlib"))
