"""What a target admits, given its last record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.errors import FencedError, SinkError
from holdfast.sinks.contract import SinkRecord, admit

LAST = SinkRecord("orders", branch=1, epoch=5, revision=0, generation=3)


def test_a_record_survives_json_and_ignores_what_a_later_version_added() -> None:
    assert SinkRecord.from_json(LAST.to_json()) == LAST
    assert SinkRecord.from_json({**LAST.to_json(), "later": 1}) == LAST


@pytest.mark.parametrize("field", ["flow", "branch", "epoch", "revision", "generation"])
def test_a_record_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(SinkError):
        SinkRecord.from_json({**LAST.to_json(), field: None})


def test_an_empty_target_takes_its_first_epoch_only() -> None:
    assert admit(None, replace(LAST, epoch=0)) == "publish"
    assert admit(None, replace(LAST, epoch=5), start=5) == "publish"
    for epoch, start in ((1, 0), (4, 5), (0, 5)):
        with pytest.raises(SinkError, match=f"waits for epoch {start}"):
            admit(None, replace(LAST, epoch=epoch), start=start)


@pytest.mark.parametrize("generation", [3, 4])
def test_the_successor_is_published_and_the_last_is_there_already(generation: int) -> None:
    assert admit(LAST, replace(LAST, epoch=6, generation=generation)) == "publish"
    assert admit(LAST, replace(LAST, generation=generation)) == "already"
    assert admit(LAST, replace(LAST, epoch=6, branch=2, generation=generation)) == "publish"


@pytest.mark.parametrize("epoch", [4, 5, 6, 7])
def test_an_older_generation_is_fenced_whatever_it_brings(epoch: int) -> None:
    with pytest.raises(FencedError, match="generation 3"):
        admit(LAST, replace(LAST, epoch=epoch, generation=2))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epoch": 7}, "gap"),
        ({"epoch": 4}, "number alone"),
        ({"epoch": 5, "revision": 1}, "revision 1"),
        ({"epoch": 5, "branch": 2}, "reuse the number 5"),
        ({"epoch": 3, "branch": 2}, "reuse the number 3"),
        ({"epoch": 5, "branch": 0}, "reuse the number 5"),
        ({"epoch": 6, "branch": 0}, "left branch 0"),
        ({"epoch": 6, "flow": "clicks"}, "belongs to the flow 'orders'"),
    ],
)
def test_what_is_not_the_successor_stops_with_an_explanation(change: dict, why: str) -> None:
    with pytest.raises(SinkError, match=why) as caught:
        admit(LAST, replace(LAST, **change))
    assert caught.value.hint
