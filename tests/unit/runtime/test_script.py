"""A script says which items exist: those up to a position, those that another run found, or both."""

from __future__ import annotations

from holdfast.ledger.inputs import Item
from holdfast.runtime.script import UNSCRIPTED, Script

ITEMS = [Item(name, 1, 1, {}) for name in "abcd"]


def test_without_a_script_a_source_is_asked_and_nobody_says_how_much_there_is() -> None:
    assert UNSCRIPTED.room("in", 3) is None
    assert UNSCRIPTED.further("in", 3) is None


def test_items_exist_up_to_a_position() -> None:
    script = Script({"in": 3})
    assert [script.room("in", known) for known in (0, 2, 3, 9)] == [3, 1, 0, 0]
    assert script.further("in", 0) is None


def test_what_another_run_found_is_not_asked_for_again() -> None:
    script = Script(found={"in": ITEMS})
    assert script.further("in", 2) == ITEMS[2:]
    assert [script.room("in", known) for known in (0, 4)] == [4, 0]
    assert script.further("other", 0) is None


def test_of_what_another_run_found_only_a_part_may_exist_yet() -> None:
    script = Script({"in": 3}, found={"in": ITEMS})
    assert [script.room("in", known) for known in (0, 3)] == [3, 0]
