"""Tells an error: what, where, whether it heals by itself, and what to do; as text or as JSON, on stderr."""

from __future__ import annotations

import json
import sys

import typer

from holdfast.core.errors import HoldfastError
from holdfast.core.json import Json
from holdfast.core.secrets import without_secrets
from holdfast.runtime.failure import facts_of, whole

TOLD, MISTYPED, FAULT = 1, 2, 70

# What Typer raises for a mistake in the command; its own name for it differs from version to version.
UsageError = typer.BadParameter.__mro__[1]

_debug = False


def show_tracebacks(wanted: bool) -> None:
    """Have whole tracebacks shown with errors from here on."""
    global _debug
    _debug = wanted


def tell(error: Exception, *, as_json: bool) -> int:
    """Say what went wrong, and with which status the process should end."""
    if isinstance(error, UsageError):
        message = error.format_message()  # type: ignore[attr-defined]
        return _say({"kind": "UsageError", "message": without_secrets(message)}, MISTYPED, as_json)
    facts = facts_of(error)
    if not isinstance(error, HoldfastError):
        return _say(facts, FAULT, as_json)
    if _debug:
        facts = {**facts, "traceback": without_secrets(whole(error))}
    foreseen = type(error).__name__ == facts["kind"]
    return _say(facts, TOLD if foreseen else FAULT, as_json)


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
    lines += [f"  log:   {known['log']}"] if known["log"] else []
    print("\n".join(lines), file=sys.stderr)
    return status


_FIELDS = ("kind", "message", "stage", "epoch", "operation", "line", "heals", "hint", "traceback", "log")
