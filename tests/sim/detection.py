"""One schedule of the detector: a machine with its load, a worker with its illness, and the judge, who is starved as well.

Time goes in steps of ten milliseconds. In each, a process that wants a CPU gets one with the chance that the load leaves
it; if its turns are long and rare, in one go. The lease's thread needs the interpreter, which threads that want a CPU
hold in turn. What the judge may see of it is what the kernel would tell: time on a CPU, and waits when they are over.

What it verifies: who is well is not accused; who is ill is, within the bound of its illness. What it does not: that the
machine is like that, which `tests/ha/test_detection.py` and `make matrix` see to.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from holdfast.core import limits
from holdfast.protocols import detector, stuck
from holdfast.protocols.detector import Evidence, Terms, Thread
from holdfast.protocols.stuck import OpenPlan, Standstill
from sim.checker import Violation

STEP_MS = 10
TERMS = Terms()

LOADS = ("idle", "24 busy", "nice")
ILLNESSES = ("well", "stopped", "killed", "regex", "asleep", "deadlock", "jvm stopped")

# How soon an illness must be found, by the clock. A standstill counts only while the JVM does not wait for a CPU.
FOUND_MS = {
    "stopped": 30_000,
    "killed": 5_000,
    "regex": 30_000,
    "asleep": 30_000,
    "deadlock": 6 * limits.STUCK_MS_MIN,
    "jvm stopped": 2 * limits.STUCK_MS_MIN,
}
# Who burns a CPU and gets next to none is told from who is starved by the clock alone.
NICE_BURNER_MS = limits.LEASE_WALL_MS_MAX + 5_000
WELL_MS = 300_000
ILL_AT_MS = 20_000


def found_ms(illness: str, load: str) -> int:
    """How soon an illness must be found."""
    return NICE_BURNER_MS if (illness, load) == ("regex", "nice") else FOUND_MS[illness]


@dataclass
class Turns:
    """When a process that wants a CPU gets one: as often as its share allows, for as long as its turns are."""

    rng: random.Random
    share: float
    turn_ms: int
    runs: bool = False
    until_ms: int = 0

    def has_cpu(self, now_ms: int) -> bool:
        """Whether it has a CPU now, if it wants one."""
        while now_ms >= self.until_ms:
            self.runs = not self.runs or self.share >= 1.0
            mean = self.turn_ms if self.runs else self.turn_ms * (1 - self.share) / self.share
            self.until_ms += max(STEP_MS, int(self.rng.uniform(0.5, 1.5) * mean))
        return self.runs


@dataclass
class Account:
    """A thread, as the kernel keeps its account: a wait is added when it is over."""

    ran_ms: int = 0
    waited_ms: int = 0
    waits_ms: int = 0

    def step(self, wants: bool, has_cpu: bool) -> None:
        """What it did in a step."""
        if not wants:
            return
        if not has_cpu:
            self.waits_ms += STEP_MS
            return
        self.waited_ms, self.waits_ms = self.waited_ms + self.waits_ms, 0
        self.ran_ms += STEP_MS

    def told(self, wants: bool) -> Thread:
        """What a reader of its files finds."""
        return Thread(self.ran_ms * 10**6, self.waited_ms * 10**6, wants)


@dataclass
class Host:
    """A worker and its JVM on a machine."""

    rng: random.Random
    load: str
    illness: str
    now_ms: int = 0
    counter: int = 0
    epoch: int = 0
    driver: Account = field(default_factory=Account)
    jvm: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        share, turn_ms = {"idle": (1.0, 100), "24 busy": (1 / 12, 30), "nice": (0.01, 30)}[self.load]
        self._cpu = Turns(self.rng, share, turn_ms)
        self._jvm_cpu = Turns(self.rng, share, turn_ms)
        self._raise_at_ms = 0
        self._need_ms = 0  # of the interpreter, before the lease's thread has it
        self._work_ms = self._epoch_ms()

    @property
    def is_ill(self) -> bool:
        return self.now_ms >= ILL_AT_MS and self.illness != "well"

    def step(self) -> None:
        """Ten milliseconds."""
        self.now_ms += STEP_MS
        ill = self.illness if self.is_ill else ""
        if ill not in ("stopped", "killed"):
            self._run_driver(ill)
        if ill not in ("jvm stopped", "killed"):
            self._run_jvm(ill)

    def wants(self) -> bool:
        """Whether the driver's threads want a CPU: while they have something to do, or burn."""
        ill = self.illness if self.is_ill else ""
        return ill == "regex" or (
            ill not in ("stopped", "killed", "asleep") and self.now_ms >= self._raise_at_ms
        )

    def evidence(self) -> Evidence:
        return Evidence(self.counter, {1: self.driver.told(self.wants()), 2: Thread(0, 0, runnable=False)})

    def jvm_evidence(self) -> Evidence:
        busy = not self.is_ill
        return Evidence(None, {3: self.jvm.told(busy)})

    def _run_driver(self, ill: str) -> None:
        has_cpu = self._cpu.has_cpu(self.now_ms)
        wants = self.wants()
        self.driver.step(wants, has_cpu)
        if self._is_held(ill) or not wants or not has_cpu:
            return
        self._need_ms -= STEP_MS
        if self._need_ms <= 0:
            self.counter += 1
            self._raise_at_ms = self.now_ms + limits.LEASE_MS_MAX // limits.LEASE_RAISES
            self._need_ms = self.rng.choice((STEP_MS, STEP_MS, 5 * STEP_MS))

    def _is_held(self, ill: str) -> bool:
        """Whether the interpreter is held, so that the lease's thread cannot run."""
        return ill in ("regex", "asleep")

    def _run_jvm(self, ill: str) -> None:
        wants = not ill or self.rng.random() < 0.02
        has_cpu = self._jvm_cpu.has_cpu(self.now_ms)
        self.jvm.step(wants, has_cpu)
        if ill or not has_cpu:
            return
        self._work_ms -= STEP_MS
        if self._work_ms <= 0:
            self.epoch, self._work_ms = self.epoch + 1, self._epoch_ms()

    def _epoch_ms(self) -> int:
        return self.rng.choice((300, 500, 2_000))


@dataclass
class Judge:
    """Looks as the supervisor does, and comes late as everybody does on a machine that is full."""

    host: Host
    rng: random.Random
    look_at_ms: int = 0
    still: Standstill | None = None
    belief: detector.Belief | None = None

    def look(self) -> str:
        """What it has to say, if it is its turn to look."""
        host, now_ms = self.host, self.host.now_ms
        if now_ms < self.look_at_ms:
            return ""
        late = {"idle": 0, "24 busy": 200, "nice": 1_000}[host.load]
        self.look_at_ms = now_ms + limits.WATCH_MS + int(late * self.rng.random() ** 2)
        if host.is_ill and host.illness == "killed":
            return "its process has ended"
        found = host.evidence()
        if not detector.wants_threads(self.belief, found.counter, TERMS):
            found = Evidence(found.counter)
        self.belief, verdict = detector.judge(self.belief, found, now_ms, TERMS)
        return verdict.why or self._look_at_plan(now_ms)

    def _look_at_plan(self, now_ms: int) -> str:
        if self.host.illness == "regex":
            return ""  # it befalls a standby, which has no plan
        self.still = stuck.look(self.still, OpenPlan("a", 0, self.host.epoch, self.host.epoch), now_ms)
        if stuck.wants_threads(self.still, now_ms):
            self.still = stuck.weigh(self.still, self.host.jvm_evidence(), now_ms)
        return stuck.verdict(self.still, [1_000.0], TERMS).why if stuck.is_near(self.still) else ""


def run(seed: int, load: str, illness: str) -> int:
    """When the illness was found; raises Violation if too late, or if there was none."""
    rng = random.Random(f"{seed} {load} {illness}")
    host = Host(rng, load, illness)
    judge = Judge(host, rng)
    end_ms = WELL_MS if illness == "well" else ILL_AT_MS + found_ms(illness, load)
    where = f"seed {seed}: {illness}, {load}"
    while host.now_ms < end_ms:
        host.step()
        why = judge.look()
        if why and not host.is_ill:
            raise Violation(f"{where}: accused at {host.now_ms} ms though it is well: {why}")
        if why:
            return host.now_ms - ILL_AT_MS
    if illness != "well":
        raise Violation(f"{where}: not found in {found_ms(illness, load)} ms")
    return 0
