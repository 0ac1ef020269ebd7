"""What counts as the code of a stage: all of the user's that a function reaches, the same in every process."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.flow.code import pieces_of
from holdfast.flow.planner import plan

HELPERS = """
LIMIT = 10
NAMES = {"b", "a", "c", "d"}

def inner(df):
    return df

def g(df):
    return inner(df)
"""

FLOW = """
import datetime, re, threading
import functools
import numpy as np
import pyarrow as pa
import helpers
from helpers import g
import holdfast as hf

FACTOR = 2
RATES = {"x": {1, 2, 3}, "y": [datetime.date(2024, 1, 1), re.compile("a+")]}
BIG = np.arange(1000)
TABLE = pa.table({"a": [1, 2]})
LOCK = threading.Lock()

class Scale:
    def __init__(self, by):
        self.by = by
    def apply(self, df):
        return df.where(f"v < {FACTOR * self.by}")

def clean(df, least=1, *, most=9):
    with LOCK:
        return g(df).where(str(FACTOR) + str(RATES) + str(BIG) + str(TABLE) + str(helpers.LIMIT) + str(helpers.NAMES))

def made(limit):
    def cut(df):
        return [one for one in [df.where(f"v < {limit}")]][0]
    return cut

def lazy(df):
    import late_helper
    return late_helper.go(df)

def add(rows, state, context):
    return state, rows

flow = hf.Flow("code")
rows = flow.source("in", hf.rows(pa.table({"v": [1]})))
rows = rows.transform(clean).transform(made(5)).transform(Scale(3).apply).transform(functools.partial(clean, least=4))
rows = rows.transform(lazy).transform(lambda df: df)
rows.stateful(hf.each_key(add, by=["v"]), by=["v"], state="n long", output="v long").named("own").to(hf.discard())
"""

SHOWN = """
def shown():
    import json
    from holdfast.flow.planner import plan
    [stage] = plan(flow).stages
    print(json.dumps([stage.fingerprint(), stage.code()]))

if __name__ == "__main__":
    shown()
"""


def code_in_a_new_process(home: Path, seed: str, *, imported: bool = True) -> tuple[str, dict[str, str]]:
    file = home / "flow_file.py"
    file.write_text(file.read_text() + SHOWN)
    way = ["-c", "import flow_file; flow_file.shown()"] if imported else [str(file)]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPYCACHEPREFIX": str(home / "pyc")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *way],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fingerprint, code = json.loads(done.stdout)
    return fingerprint, code


def written(home: Path, **edits: tuple[str, str]) -> Path:
    home.mkdir(exist_ok=True)
    texts = {"flow_file": FLOW, "helpers": HELPERS, "late_helper": "def go(df):\n    return df\n"}
    for name, (old, new) in edits.items():
        assert old in texts[name]
        texts[name] = texts[name].replace(old, new)
    for name, text in texts.items():
        (home / f"{name}.py").write_text(text)
    return home


def test_code_is_the_same_in_every_process_imported_or_run_and_after_a_move(tmp_path: Path) -> None:
    first = code_in_a_new_process(written(tmp_path / "one"), "1")
    assert code_in_a_new_process(written(tmp_path / "two"), "2", imported=False) == first
    assert {name.partition(": ")[2] for name in first[1] if name.startswith("transform `clean`")} >= {
        "helper `g`", "helper `inner`", "global `FACTOR`", "global `LIMIT`", "global `NAMES`", "default `least`",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "named"),
    [
        ({"flow_file": ("FACTOR = 2", "FACTOR = 3")}, "transform `clean`: global `FACTOR`"),
        ({"flow_file": ("{1, 2, 3}", "{1, 2, 4}")}, "transform `clean`: global `RATES`"),
        ({"flow_file": ("np.arange(1000)", "np.arange(1, 1001)")}, "transform `clean`: global `BIG`"),
        ({"flow_file": ('{"a": [1, 2]}', '{"a": [1, 3]}')}, "transform `clean`: global `TABLE`"),
        ({"flow_file": ("made(5)", "made(6)")}, "transform `cut`: closure `limit`"),
        ({"flow_file": ("Scale(3)", "Scale(4)")}, "transform `apply`"),
        ({"flow_file": ("least=4", "least=5")}, "transform `clean`"),
        ({"flow_file": ("most=9", "most=8")}, "transform `clean`: default `most`"),
        ({"flow_file": ("return state, rows", "return rows, state")}, "function `add`"),
        ({"helpers": ("return inner(df)", "return inner(inner(df))")}, "transform `clean`: helper `g`"),
        ({"helpers": ("    return df", "    return df.limit(1)")}, "transform `clean`: helper `inner`"),
        ({"helpers": ("LIMIT = 10", "LIMIT = 11")}, "transform `clean`: global `LIMIT`"),
        ({"late_helper": ("return df", "return df.distinct()")}, "transform `lazy`: module `late_helper`"),
    ],
)  # fmt: skip
def test_a_change_anywhere_below_a_function_is_told_by_its_name(
    tmp_path: Path, edits: dict[str, tuple[str, str]], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _code_here(written(tmp_path), monkeypatch)
    after = _code_here(written(tmp_path, **edits), monkeypatch)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert named in changed
    assert "transform `<lambda>`" not in changed


def _code_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """As in a process of its own, but faster: the modules are made anew from what is written now."""
    import linecache

    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    linecache.clearcache()
    for name in ("helpers", "late_helper"):
        sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location("flow_file", home / "flow_file.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "flow_file", module)
    spec.loader.exec_module(module)
    sys.modules.pop("helpers", None)
    [stage] = plan(module.flow).stages
    return stage.code()


def recursive(n: int) -> int:
    return recursive(n - 1) if n else 0


ROUND: list[object] = [1]
ROUND.append(ROUND)


def unfathomable(df: object) -> object:
    return (df, ROUND, LOCK, sys, json.dumps, CACHED(1), os.environ)


LOCK = threading.Lock()


@functools.lru_cache
def CACHED(n: int) -> int:
    return n


@pytest.mark.parametrize(
    "function", [recursive, unfathomable, print, functools.partial(print, end=""), lambda df: df]
)
def test_any_callable_has_pieces_and_no_addresses(function: Callable[..., object]) -> None:
    found = pieces_of(function, "transform")
    assert found == pieces_of(function, "transform")
    assert all(name.startswith("transform `") for name in found)


def test_installed_packages_and_the_standard_library_do_not_count() -> None:
    found = pieces_of(unfathomable, "transform")
    assert "transform `unfathomable`: helper `CACHED`" in found
    assert not [name for name in found if "dumps" in name or "environ" in name]
