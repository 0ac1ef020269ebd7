"""Durations are read exactly, or refused with the name of the argument they were given as."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.duration import microseconds, signed_microseconds
from holdfast.core.errors import PlanError

SECOND = 1_000_000
MINUTE, HOUR, DAY, WEEK = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND, 7 * 86_400 * SECOND
MAX = 10**18

UNITS = {
    ("us", "microsecond", "microseconds"): 1,
    ("ms", "millisecond", "milliseconds"): 1_000,
    ("s", "second", "seconds"): SECOND,
    ("m", "min", "mins", "minute", "minutes"): MINUTE,
    ("h", "hour", "hours"): HOUR,
    ("d", "day", "days"): DAY,
    ("week", "weeks"): WEEK,
}
SIZES = {unit: size for units, size in UNITS.items() for unit in units}
EXAMPLE = "Write a number and a unit from microseconds to weeks, such as '10 seconds' or '1 hour 30 minutes'."


@pytest.mark.parametrize(("unit", "size"), SIZES.items())
def test_every_unit_is_read_with_and_without_a_space_and_in_capitals(unit: str, size: int) -> None:
    for text in (f"7 {unit}", f"7{unit}", f"  7   {unit} ", f"007 {unit.upper()}"):
        assert microseconds(text, "late") == 7 * size


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(sorted(SIZES))), min_size=1, max_size=5))
def test_a_sum_of_parts_is_their_sum(parts: list[tuple[int, str]]) -> None:
    expected = sum(number * SIZES[unit] for number, unit in parts)
    for between in (" ", "", "\t"):
        text = between.join(f"{number} {unit}" for number, unit in parts)
        assert microseconds(text, "late", zero=True) == expected


@given(st.integers(1, MAX - 1))
def test_a_timedelta_and_the_same_number_of_microseconds_are_one_duration(us: int) -> None:
    assert microseconds(timedelta(microseconds=us), "late") == us
    assert microseconds(f"{us} us", "late") == us


@pytest.mark.parametrize("nothing", ["0 seconds", "0s 0 min", timedelta(0)])
def test_zero_is_a_duration_only_where_it_is_allowed(nothing: str | timedelta) -> None:
    assert microseconds(nothing, "late", zero=True) == 0
    with pytest.raises(PlanError, match="is not a positive duration") as refused:
        microseconds(nothing, "within")
    assert refused.value.message.startswith(f"within={nothing!r} ")


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    "negative", ["-1 second", "1 hour -1 second", timedelta(microseconds=-1), timedelta.min]
)
def test_no_duration_is_negative(negative: str | timedelta, zero: bool) -> None:
    with pytest.raises(PlanError, match="is not a (positive )?duration") as refused:
        microseconds(negative, "max_ahead", zero=zero)
    assert refused.value.message.startswith(f"max_ahead={negative!r} ")


@pytest.mark.parametrize(
    "rubbish",
    [
        "",
        " ",
        "10",
        "seconds",
        "seconds 10",
        "ten seconds",
        "1.5 seconds",
        "1,5 seconds",
        "1 hour and 30 minutes",
        "1 hour, 30 minutes",
        "10 seconds!",
        "10 seconds 5",
        "1 fortnight",
        "1 month",
        "2 years",
        "+1 second",
        "1e3 ms",
    ],
)
def test_what_is_no_duration_is_refused_with_an_example_of_one(rubbish: str) -> None:
    for zero in (False, True):
        with pytest.raises(PlanError, match="is not a duration") as refused:
            microseconds(rubbish, "late", zero=zero)
        assert refused.value.message == f"late={rubbish!r} is not a duration"
        assert refused.value.operation == "describe"
        assert refused.value.hint == EXAMPLE


@pytest.mark.parametrize("other", [None, 10, 1.5, True, b"10 seconds", ["10 seconds"], ("10", "seconds")])
def test_what_is_not_even_a_text_is_refused_in_the_same_way(other: object) -> None:
    with pytest.raises(PlanError, match="is not a duration") as refused:
        microseconds(other, "tumbling")  # type: ignore[arg-type]
    assert refused.value.message == f"tumbling={other!r} is not a duration"
    assert refused.value.hint == EXAMPLE


def test_the_longest_duration_leaves_room_for_sums() -> None:
    assert microseconds(timedelta(microseconds=MAX), "late") == MAX
    assert microseconds(f"{MAX - 1} us", "late") == MAX - 1
    assert microseconds(f"{MAX - 1} us 1 us", "late") == MAX
    # A stored time, this on top and this again still fit 64 bits.
    assert 3 * MAX < 2**63


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    "huge",
    [
        timedelta(microseconds=MAX + 1),
        timedelta.max,
        f"{MAX - 1} us 2 us",
        "2000000 weeks",
        f"{MAX + 1} us",
        "9" * 5_000 + " seconds",
    ],
    ids=["by one", "largest timedelta", "a sum", "weeks", "19 digits", "thousands of digits"],
)
def test_what_is_longer_is_refused(huge: str | timedelta, zero: bool) -> None:
    with pytest.raises(PlanError, match="is not a (positive )?duration") as refused:
        microseconds(huge, "session", zero=zero)
    assert refused.value.message.startswith(f"session={huge!r} ")
    assert refused.value.operation == "describe"


@pytest.mark.parametrize(
    ("written", "value"),
    [("5 s", 5_000_000), ("-5 s", -5_000_000), (" - 1 minute 1 s", -61_000_000), ("-0 s", 0), ("0 s", 0)],
)
def test_a_signed_duration_may_lie_on_either_side_of_zero(written: str, value: int) -> None:
    assert signed_microseconds(written, "within") == value
    assert signed_microseconds(timedelta(microseconds=value), "within") == value


@pytest.mark.parametrize("written", ["--5 s", "-", "5 s -", "- 5", None, 5])
def test_what_is_no_signed_duration_is_refused(written: object) -> None:
    with pytest.raises(PlanError, match="within=.* is not a duration"):
        signed_microseconds(written, "within")  # type: ignore[arg-type]
