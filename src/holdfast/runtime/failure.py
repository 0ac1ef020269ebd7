"""An error as facts that cross from one process to another: the ledger keeps them, and the command line tells them."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import holdfast
from holdfast.core import errors
from holdfast.core.code_errors import line_of, trimmed
from holdfast.core.errors import CodeError, FlowError, FlowImportError, HoldfastError
from holdfast.core.json import Json
from holdfast.core.secrets import without_secrets
from holdfast.runtime import loader

_HOPELESS = (
    "PlanError",
    "FlowImportError",
    "CodeError",
    "FlowError",
    "StateSchemaError",
    "InputError",
    "SinkError",
)

_OURS = str(Path(holdfast.__file__).parent)


def facts_of(error: BaseException, settings: Iterable[tuple[str, str]] = ()) -> Json:
    """What, where, whether it heals by itself, and what to do. One that nobody foresaw keeps its traceback.

    Libraries repeat addresses in what they raise, and a traceback shows lines of the flow: no password of an address, and no
    secret of the settings, is left in any of it.
    """
    told = [*settings]
    return {
        name: without_secrets(value, told) if isinstance(value, str) else value
        for name, value in _facts(error).items()
    }


def _facts(error: BaseException) -> Json:
    if isinstance(error, HoldfastError):
        if error.told is not None:
            return error.told
        return {
            "kind": type(error).__name__,
            "message": error.message,
            "stage": error.stage,
            "epoch": error.epoch,
            "operation": error.operation,
            "line": _line(error),
            "heals": error.heals,
            "hint": error.hint,
            "traceback": _of_the_user(error),
        }
    # Nobody foresaw it, so whoever mends it needs to see where it came from.
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": whole(error),
        "hint": "This is a fault in Holdfast or in what it runs on.",
    }


def error_of(facts: Json) -> HoldfastError:
    """The error again, for whoever has to do with it in another process."""
    kind = getattr(errors, str(facts["kind"]), HoldfastError)
    error: HoldfastError = kind(
        facts["message"],
        operation=facts.get("operation"),
        stage=facts.get("stage"),
        epoch=facts.get("epoch"),
        heals=bool(facts.get("heals")),
        hint=facts.get("hint"),
    )
    error.told = facts
    return error


def is_hopeless(facts: Json) -> bool:
    """Whether another start would only meet the error again."""
    return facts["kind"] in _HOPELESS and not facts.get("heals")


def whole(error: BaseException) -> str:
    """The traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


def _of_the_user(error: HoldfastError) -> str | None:
    """What the flow's own code raised, while it was imported or while it ran; our frames say nothing there."""
    if isinstance(error, CodeError):
        return error.trace
    cause = error.__cause__
    return trimmed(whole(cause)) if isinstance(error, FlowImportError) and cause is not None else None


def _line(error: HoldfastError) -> str | None:
    """The line of the flow's code that was running when the error was raised."""
    if isinstance(error, CodeError):
        return error.line
    if not isinstance(error, FlowError):
        return None
    if isinstance(error, FlowImportError) and error.__cause__ is not None:
        return line_of(error.__cause__)
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
