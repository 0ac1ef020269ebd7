"""How long outages of the ledger are borne by those who can begin again from the start.

A transaction that could not begin has waited for the ledger already, as long as anybody should
(`limits.LEDGER_BUSY_MS_MAX`). What is borne here is the connection that breaks in the middle: at once, and perhaps with
the commit in doubt. Then the one thing that is safe is to look at the ledger again, or to repeat a transaction that
makes no difference the second time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from holdfast.core import limits
from holdfast.core.errors import LedgerError

P = ParamSpec("P")
T = TypeVar("T")


class Patience:
    """Bears errors that heal until they have lasted too long."""

    def __init__(self) -> None:
        self._since: float | None = None

    def bear(self, error: LedgerError) -> None:
        """Wait a moment; raise the error if it does not heal, or has not for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not error.heals or now - self._since >= limits.LEDGER_BUSY_MS_MAX / 1000:
            raise error
        time.sleep(limits.LEDGER_RETRY_MS / 1000)

    def restore(self) -> None:
        """All is well again."""
        self._since = None


def repeatable(function: Callable[P, T]) -> Callable[P, T]:
    """Of a function that is one transaction which makes no difference the second time: repeat it after an outage."""

    @functools.wraps(function)
    def patient(*args: P.args, **kwargs: P.kwargs) -> T:
        patience = Patience()
        while True:
            try:
                return function(*args, **kwargs)
            except LedgerError as error:
                patience.bear(error)

    return patient
