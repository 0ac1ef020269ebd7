"""The figures of the policies benchmark, its job, and what a tree of processes costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.bench import policies, policy_job
from holdfast.bench.cost import Cost, spent, tree
from holdfast.bench.feed import Feed, Pool
from holdfast.bench.policies import Measured, Sample, costs_of, ratios_of
from holdfast.bench.policy_job import CASES, flow_under
from holdfast.core.duration import microseconds
from holdfast.flow.planner import plan


def sample(seconds: float, cpu_s: float = 1.0) -> Sample:
    return Sample([seconds] * 3, [seconds / 2] * 3, 500_000, Cost(cpu_s, 2_000_000))


def test_ratios_are_of_neighbours_in_time_and_leave_the_outermost_of_nine_out() -> None:
    measured = Measured(CASES["no_sync"])
    for number in range(9):
        # The machine gets slower from pair to pair, and the ratio goes from 1.0 to 1.8.
        measured.base.append(sample(1.0 + number))
        measured.own.append(sample((1.0 + number) * (1.0 + number / 10), cpu_s=1.05))
    time, cpu = ratios_of(measured)
    assert {time.name, cpu.name} == set(policies.BARS)
    assert (time.value, time.low, time.high) == pytest.approx((1.4, 1.1, 1.7))
    assert cpu.value == pytest.approx(1.05)


def test_costs_are_per_million_rows() -> None:
    found = {figure.name: figure.value for figure in costs_of("gap", [sample(1.0), sample(3.0)])}
    assert found == {
        "gap_cpu_s_per_m_rows": 2.0,
        "gap_written_mb_per_m_rows": 4.0,
        "gap_p50_s": 0.5,
        "gap_p99_s": 1.5,
    }


@pytest.mark.parametrize("name", CASES)
def test_every_policy_is_allowed_for_the_job(name: str, tmp_path: Path) -> None:
    [stage] = plan(flow_under(name, tmp_path)).stages
    assert stage.policy == CASES[name].make()


def test_a_window_closes_in_every_counted_epoch() -> None:
    window_s, late_s = (microseconds(text, "it") / 1_000_000 for text in (policy_job.WINDOW, policy_job.LATE))
    assert window_s + late_s < policy_job.FILLING * policy_job.SPAN_S
    assert window_s == policy_job.SPAN_S


def test_a_tree_of_processes_includes_those_that_have_ended() -> None:
    before = spent(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE)
    assert child.pid in tree(os.getpid())
    child.communicate(b"\n")
    assert child.pid not in tree(os.getpid())
    assert spent(os.getpid()).since(before).cpu_s >= 0.25


def test_a_feed_stays_ahead_in_the_order_of_the_files(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool", keys=10, rows=5, span_s=10, seed=1)
    pool.fill(2)
    one, other = Feed(pool, tmp_path / "a"), Feed(pool, tmp_path / "b")
    one.keep_ahead(1, ahead=3)
    one.keep_ahead(0, ahead=3)
    other.give()
    assert [path.name for path in sorted(one.directory.iterdir())] == [f"0000{n}.parquet" for n in range(4)]
    times = [path.stat().st_mtime for path in sorted(one.directory.iterdir())]
    assert times == sorted(set(times))
    [again] = other.directory.iterdir()
    assert again.samefile(one.directory / "00000.parquet")
