"""Writes down what the sources hold: new items as they appear, and items that were mended before anyone read them."""

from __future__ import annotations

import time

from holdfast.core import crashpoints
from holdfast.ledger import inputs as ledger_inputs
from holdfast.runtime.context import Runtime
from holdfast.sources.contract import Mendable


class Discovery:
    """The discoveries of one run."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        with rt.ledger.read() as tx:
            self._known = {name: ledger_inputs.known_identities(tx, name) for name in rt.sources}

    def take_mended(self) -> None:
        """Take items as they are now, if no committed epoch has read them: somebody may have mended them.

        Only before the loops start: no attempt of this process is under way, and none of another can commit.
        """
        rt = self._rt
        for name, source in rt.sources.items():
            if not isinstance(source, Mendable):
                continue
            with rt.ledger.read() as tx:
                unread = ledger_inputs.unread_by_all(tx, name)
            found = {ordinal: source.as_found(item) for ordinal, item in unread.items()}
            mended = {ordinal: item for ordinal, item in found.items() if item != unread[ordinal]}
            if mended:
                ledger_inputs.replace_items(rt.ledger, rt.generation, name, mended)

    def step(self) -> bool:
        """Write down what is new at the sources; whether anything was.

        All sources are looked at before the loops are told of any, so that a stage with several takes of each.
        """
        rt = self._rt
        found = {name: source.discover(self._known[name]) for name, source in rt.sources.items()}
        new = {name: items for name, items in found.items() if items}
        for name, items in new.items():
            ledger_inputs.add_items(rt.ledger, rt.generation, name, items)
            self._known[name].update(item.identity for item in items)
            rt.heard[name] = time.monotonic()
            crashpoints.reach("discover.after")
        if new:
            rt.alarm.ring()
        return bool(new)
