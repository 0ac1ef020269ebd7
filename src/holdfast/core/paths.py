"""Paths that a user gives."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from holdfast.core.errors import PlanError

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")


def local(path: str | os.PathLike[str], what: str, instead: str) -> str:
    """A path of this machine, of a `file:` URL too. Another URL would be taken for the name of a directory here."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(path, str) or not path:
        raise PlanError(
            f"{path!r} is not the path of {what}", operation="describe", hint='Say "in/", or the like.'
        )
    found = _SCHEME.match(path)
    if found is None:
        return path
    if found["scheme"] == "file" and urlsplit(path).netloc in ("", "localhost"):
        return unquote(urlsplit(path).path)
    raise PlanError(
        f"{path!r} is a URL, and {what} is a directory that this machine can open",
        operation="describe",
        hint=f"Mount it, and give the path. {instead}",
    )
