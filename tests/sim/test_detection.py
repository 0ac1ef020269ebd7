"""Every load with every illness, over many seeds; and rules that seem right, each of which some schedule finds out."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from planted_rules import gains_cpu_is_alive, no_bound_by_the_clock, stuck_without_the_jvm, wall_clock_only
from sim import detection
from sim.checker import Violation
from sim.detection import ILLNESSES, LOADS, Host

SEEDS = range(3)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("illness", ILLNESSES)
def test_the_ill_are_found_and_the_well_are_left_alone(illness: str, load: str) -> None:
    for seed in SEEDS:
        detection.run(seed, load, illness)


@pytest.mark.parametrize("illness", ["stopped", "asleep", "regex"])
def test_without_load_a_silence_is_found_after_about_a_lease(illness: str) -> None:
    assert max(detection.run(seed, "idle", illness) for seed in SEEDS) <= 1_600


def lease_raised_by_native_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Host, "_is_held", lambda self, ill: False)
    real = Host.wants
    patch.setattr(Host, "wants", lambda self: real(self) or (self.is_ill and self.illness == "asleep"))


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (gains_cpu_is_alive, "regex, .*: not found"),
    (lease_raised_by_native_code, "(asleep|regex), .*: not found"),
    (wall_clock_only, "well, .*: accused .* though it is well"),
    (no_bound_by_the_clock, "regex, .*: not found"),
    (stuck_without_the_jvm, "(deadlock|jvm stopped), .*: not found"),
]


@pytest.mark.parametrize(("plant", "found"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_wrong_rule_is_found_out(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    violations = []
    for load in LOADS:
        for illness in ILLNESSES:
            try:
                detection.run(0, load, illness)
            except Violation as violation:
                violations.append(str(violation))
    assert any(re.search(found, one) for one in violations), violations
