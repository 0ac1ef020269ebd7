"""Packages that only some flows need, and how to install one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.errors import PlanError


@contextmanager
def package_of(extra: str) -> Iterator[None]:
    """Say which extra brings a package that is imported inside, if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "holdfast":
            raise
        raise PlanError(
            f"the package {error.name} is not installed",
            operation="plan",
            hint=f"pip install 'holdfast[{extra}]'",
        ) from error
