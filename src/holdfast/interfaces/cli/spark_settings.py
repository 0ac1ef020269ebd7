"""Spark's settings as a command is given them: in its arguments, which everybody on the machine may read, or in a file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

# As in spark-defaults.conf: a name and a value, with blanks or an equals sign in between.
_LINE = re.compile(r"([^\s=]+)(?:\s*=\s*|\s+)(\S.*)")


def settings_of(arguments: Sequence[str], file: Path | None) -> dict[str, str]:
    """The settings of both; an argument goes before a line of the file."""
    return {**(dict(_of_file(file)) if file else {}), **dict(map(_of_argument, arguments))}


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    """Like keys and password files elsewhere, it is refused where others may read it: somebody believes it to be secret.

    No line is repeated in a message.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise _refused(f"{path} cannot be read: {reason}.") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _refused(f"{path} may be read or changed by others (mode {mode:04o}). Say chmod 600 {path}.")
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise _refused(f"line {number} of {path} is not KEY VALUE or KEY=VALUE.")
        yield found[1], found[2]


def _refused(why: str) -> typer.BadParameter:
    return typer.BadParameter(why, param_hint="--conf-file")


def _of_argument(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter("a setting is not KEY=VALUE.", param_hint="--conf")
    return key, value
