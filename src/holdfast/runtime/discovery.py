"""Writes down what the sources hold: new items as they appear, and items that were mended before anyone read them."""

from __future__ import annotations

import time

from holdfast.core import crashpoints
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.inputs import Item
from holdfast.runtime.context import Runtime
from holdfast.sources.contract import Driven, Limits, Mendable, Taken


class Discovery:
    """The discoveries of one run. A source that other workers read too is the business of one of them."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._own = rt.own_sources
        # Those of the flow as it is: one that was taken out of it holds nothing back.
        self._stages = [f"stage:{stage.name}" for stage in rt.plan.stages]
        self._known: dict[str, set[str]] = {}
        self._last: dict[str, Item] = {}
        self._unread: dict[str, int] = {}  # as the ledger had it when it was last seen to change
        self._let_go: dict[str, str] = {}
        self._outlook = rt.news.outlook()
        for name in rt.sources:
            self._read(name)

    def begin(self) -> None:
        """Start what works by itself, and take items as they are now. Only before the loops start."""
        for name in self._own:
            source = self._rt.sources[name]
            if isinstance(source, Driven):
                source.start(self._rt.spark, self._rt.generation)
        self._rt.surviving(self._take_mended)

    def end(self) -> None:
        """Stop what works by itself."""
        for name in self._own:
            source = self._rt.sources[name]
            if isinstance(source, Driven):
                source.stop()

    def _take_mended(self) -> None:
        """Take items as they are now, if no committed epoch has read them: somebody may have mended them.

        No attempt of this process is under way, and none of another can commit.
        """
        rt = self._rt
        for name in self._own:
            source = rt.sources[name]
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
        others = self._caught_up()
        found = {name: self._discovered(name) for name in self._own}
        new = {name: items for name, items in found.items() if items}
        if new:
            ledger_inputs.add_items(rt.ledger, rt.generation, new)
            crashpoints.reach("discover.after")
        for name, items in new.items():
            self._known[name].update(item.identity for item in items)
            self._last[name] = items[-1]
            rt.heard[name] = time.monotonic()
        if new or others:
            rt.alarm.ring()
        return bool(new)

    def let_go(self) -> None:
        """Tell the sources what will never be read again."""
        rt = self._rt
        for name in self._own:
            with rt.ledger.read() as tx:
                last = ledger_inputs.last_unneeded(tx, name, self._stages)
            if last is not None and last.identity != self._let_go.get(name):
                rt.sources[name].commit(last)
                self._let_go[name] = last.identity

    def is_complete(self) -> bool:
        """Whether no source has more than is written down, those of other workers included."""
        rt = self._rt
        others = [name for name in rt.sources if name not in self._own]
        if any(self._discovered(name) for name in others):
            return False
        return not any(
            source.more_to_come()
            for name, source in rt.sources.items()
            if rt.script.room(name, len(self._known[name])) != 0
        )

    def _discovered(self, name: str) -> list[Item]:
        """What a source holds and is not known, as far as the script lets it exist."""
        rt, known = self._rt, self._known[name]
        at = len(known)  # once: another thread may learn of items meanwhile
        room = rt.script.room(name, at)
        if room == 0:
            return []
        found = rt.script.further(name, at)
        if found is None:
            after = Taken(at, self._last.get(name), self._unread[name], known)
            found = rt.sources[name].next(after, Limits())
        return list(found)[:room]

    def _caught_up(self) -> bool:
        """Learn from the ledger, if it has changed, what is read and what others have found; whether they have."""
        rt = self._rt
        if self._unread and not self._outlook.is_due():
            return False
        self._outlook.look()
        try:
            with rt.ledger.read() as tx:
                self._unread = {
                    name: ledger_inputs.number_unread(tx, name, self._stages) for name in rt.sources
                }
            return any([self._read(name) for name in rt.sources if name not in self._own])
        except BaseException:
            self._outlook.forget()
            raise

    def _read(self, name: str) -> bool:
        """Learn from the ledger what is known of a source; whether it is more than before."""
        rt = self._rt
        with rt.ledger.read() as tx:
            if name in self._known and ledger_inputs.number_of_items(tx, name) == len(self._known[name]):
                return False
            self._known[name] = ledger_inputs.known_identities(tx, name)
            for item in ledger_inputs.items(tx, name, len(self._known[name]) - 1, len(self._known[name])):
                self._last[name] = item
        rt.heard[name] = time.monotonic()
        return True
