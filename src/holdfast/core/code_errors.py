"""An error that the user's code raised, told by its traceback: without the frames of Spark and of Holdfast.

A Python worker's error reaches the driver as text, whatever kind of session it is. The same text comes from an exception
that is at hand, so there is one way to read both.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from holdfast.core.errors import CodeError

_START = "Traceback (most recent call last):"
# What Spark puts behind a Python worker's traceback.
_END = re.compile(r"\n\s*SQLSTATE: |\n\s*JVM stacktrace:|\n\tat ")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_OURS = re.compile(
    rf"^{re.escape(str(Path(__file__).parents[1]))}[\\/]|(?:-packages|\.zip|\.egg|\.whl)[\\/]holdfast[\\/]"
)
_SPARKS = re.compile(r"(?:-packages|\.zip|[\\/]python)[\\/]pyspark[\\/]|^<frozen ")
_LIBRARY = re.compile(r"-packages[\\/]|[\\/]lib[\\/]python3|\.pyx$")

# What can befall a Python worker whatever the code in it: another one may do.
_OUTSIDE = (
    "MemoryError",
    "OSError",
    "EOFError",
    "BrokenPipeError",
    "ConnectionError",
    "ConnectionResetError",
)

_HINT = (
    "Nothing of the epoch was committed. To try again will not help until the code, or what it reads, is mended;"
    " the next run goes on from here."
)


def raised(text: str, what: str, *, operation: str) -> CodeError:
    """The error of a traceback, as the person who wrote the code wants to see it."""
    account = _account(text)
    error = CodeError(f"{what} raised {_last(account)}", operation=operation, hint=_HINT)
    error.trace = trimmed(account)
    error.line = _line(account)
    return error


def raised_by(error: BaseException, what: str, *, operation: str) -> CodeError:
    """The same for an exception that is at hand."""
    return raised("".join(traceback.format_exception(error)), what, operation=operation)


def is_of_their_code(text: str) -> bool:
    """Whether a Python worker's traceback is of the user's code, and not of what may befall any task.

    Without a frame of theirs, Spark could not do with their code what it was asked to: load it, or take its result.
    """
    account = _account(text)
    files = [frame["file"] for frame in map(_FRAME.match, account.splitlines()) if frame]
    if not files or any(map(_OURS.search, files)):
        return False
    kind = _last(account).partition(":")[0]
    theirs = any(not _SPARKS.search(file) for file in files)
    return kind != "MemoryError" and (theirs or kind not in _OUTSIDE)


def line_of(error: BaseException) -> str | None:
    """FILE:LINE where an exception comes from: the user's own line, or, of one that cannot be parsed, that."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return _line("".join(traceback.format_exception(error)))


def trimmed(account: str) -> str:
    """A traceback without the frames that are not the user's business."""
    kept, theirs = [], True
    for line in account.splitlines():  # bounded: the lines of a traceback
        frame = _FRAME.match(line)
        if frame:
            theirs = not (_OURS.search(frame["file"]) or _SPARKS.search(frame["file"]))
        elif not line.startswith("    "):
            theirs = True
        if theirs:
            kept.append(line)
    return "\n".join(kept)


def _account(text: str) -> str:
    """The traceback in what Spark says."""
    start = max(text.find(_START), 0)
    end = _END.search(text, start)
    return text[start : end.start() if end else len(text)].strip()


def _last(account: str) -> str:
    """The kind and the message of the error, in one line."""
    told = [line for line in account.splitlines() if line and not line.startswith(" ")]
    frames = [number for number, line in enumerate(account.splitlines()) if line.startswith("  ")]
    behind = account.splitlines()[frames[-1] + 1 :] if frames else told
    return next((line for line in behind if line), told[-1] if told else "an error")


def _line(account: str) -> str | None:
    """The last line of code that is the user's own, or else one of a library that it called."""
    frames = [frame for frame in map(_FRAME.match, account.splitlines()) if frame]
    theirs = [frame for frame in frames if not (_OURS.search(frame["file"]) or _SPARKS.search(frame["file"]))]
    own = [frame for frame in theirs if not _LIBRARY.search(frame["file"])]
    last = next(iter([*own[-1:], *theirs[-1:]]), None)
    return f"{last['file']}:{last['line']}" if last else None
