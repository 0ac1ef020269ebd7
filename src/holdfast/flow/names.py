"""Names that a user gives to flows, sources, stages and groups."""

from __future__ import annotations

import re

from holdfast.core.errors import PlanError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_name(name: str, what: str) -> str:
    """Names become parts of file names, so their letters are few."""
    if not _NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} cannot name a {what}",
            operation="describe",
            hint="Use letters, digits, '_', '-' and '.', starting with a letter or digit.",
        )
    return name
