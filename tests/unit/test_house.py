"""The house rules, as tests that can fail; every detector is first shown a planted offence.

They read source text only, so they say nothing about speed or behaviour. A line that must go over a few
rows (the manifest rows of a job, one per task) says why with `# bounded: <reason>`.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import crashpoints, limits

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "holdfast"
COLUMNAR = ("state", "spark", "sinks", "channels")
FILE_LINES_MAX = 400

ROW_BY_ROW_CALLS = {
    "to_pylist", "as_py", "iterrows", "itertuples", "toLocalIterator",
    "vectorize", "frompyfunc", "apply_along_axis", "nditer",
}  # fmt: skip
ROW_ITERABLES = {"table", "tbl", "batch", "record_batch", "column", "rows", "hashes", "df", "frame"}
ROW_MAKERS = {"collect", "tolist", "to_numpy", "values", "toPandas", "to_pandas"}
BOUNDED = re.compile(r"#\s*bounded: \S+")

DELETING_CALLS = {"unlink", "rmtree", "rmdir", "removedirs"}
DELETING_HELPERS = {"discard", "remove", "remove_if_empty", "removal"}
# `verify`, `bench` and `testing` work on directories of their own.
PLAYING = ("verify", "bench", "testing")
# Who deletes files, and what. Of what attempts have written, only the sweeper does.
DELETERS = {
    "storage/sweeper.py": "layers, segments and directories of attempts, condemned or spent in the ledger before",
    "storage/table_copies.py": "copies of tables that no plan names, when the sweeper calls it",
    "storage/atomic.py": "drafts of its own that failed; `discard` is for what nobody names",
    "storage/removal.py": "what a person has asked to be removed",
    "runtime/reset.py": "a whole work directory, when a person resets the flow",
    "runtime/rehearsal.py": "the scratch directory of the process's own rehearsals",
    "runtime/lease.py": "the process's own lease",
    "runtime/watching.py": "the lease of a worker that is gone",
    "ledger/location.py": "the draft of `ledger.json`",
    "ledger/sqlite.py": "the ledger, as the end of a reset",
    "sources/stream_log.py": "drafts, old claims and batches that all consumers are done with",
    "state/run.py": "a run whose writing failed, which nobody knows of yet",
    "spark/session.py": "the place for tables of a flow's own code, made by the process itself, if it is empty",
    "sinks/sqlite.py": "staging files of its own",
    "sinks/clearing.py": "a target, when a person resets it",
    "interfaces/cli/state.py": "the draft of an export",
    "interfaces/cli/verify.py": "the directories in which a flow was verified",
}

GATEWAY_NAMES = {"sparkContext", "_jvm", "_jsc", "_jdf", "_jsparkSession", "rdd"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\b[Ff]or now\b")
MACHINE_PATH = re.compile(r"(?<![\w.~})*-])/(?:work|root|home)/")


def python_files(*packages: str) -> list[Path]:
    roots = [SRC / package for package in packages] if packages else [SRC]
    return sorted(file for root in roots for file in root.rglob("*.py"))


def tracked_files() -> list[Path]:
    """What git tracks or would track: new files count before they are added."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [file for name in listing.split("\0") if name and (file := ROOT / name).is_file()]


def text_of(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def matching_lines(pattern: re.Pattern[str], text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name; empty where the node is not a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST) -> str:
    return name_of(node.func) if isinstance(node, ast.Call) else ""


def goes_over_rows(iterable: ast.AST, row_names: set[str]) -> bool:
    if called(iterable) in {"zip", "enumerate", "reversed", "sorted", "list", "iter"}:
        return any(goes_over_rows(argument, row_names) for argument in iterable.args)  # type: ignore[attr-defined]
    if called(iterable) == "range":
        inner = list(ast.walk(iterable))
        return any(name_of(node) == "num_rows" for node in inner) or any(
            called(node) == "len" and name_of(node.args[0]) in row_names  # type: ignore[attr-defined]
            for node in inner
        )
    return name_of(iterable) in row_names or called(iterable) in ROW_MAKERS


def row_loops(source: str) -> list[int]:
    """Lines that handle rows one at a time: per-row calls, and loops over something that holds rows."""
    tree = ast.parse(source)
    row_names = ROW_ITERABLES | {
        name_of(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and called(node.value) in ROW_MAKERS
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ROW_BY_ROW_CALLS:
            found.add(node.end_lineno)
        elif isinstance(node, ast.For | ast.comprehension) and goes_over_rows(node.iter, row_names):
            found.add(node.iter.lineno)
    lines = source.splitlines()
    return sorted(number for number in found if number and not BOUNDED.search(lines[number - 1]))


def gateway_uses(source: str) -> list[int]:
    """Lines that use what a Spark Connect session does not have."""
    return sorted(
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in GATEWAY_NAMES
    )


def deletions(source: str) -> list[int]:
    """Lines that take files away, or import somebody who does it."""
    return sorted(
        node.lineno
        for node in ast.walk(ast.parse(source))
        if called(node) in DELETING_CALLS
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "os.remove")
        or (
            isinstance(node, ast.ImportFrom)
            and str(node.module).startswith("holdfast.storage")
            and any(alias.name in DELETING_HELPERS for alias in node.names)
        )
    )


def reached(source: str) -> Iterator[str | None]:
    """The points that the source reaches; None for one whose name is not a literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and called(node) == "reach":
            first = node.args[0] if node.args else None
            yield first.value if isinstance(first, ast.Constant) else None


def names_read(source: str) -> set[str]:
    return {
        name_of(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def offences(files: list[Path], detect) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        if (text := text_of(file)) is not None
        for line in detect(text)
    ]


@pytest.mark.parametrize(
    "planted",
    [
        "table.column('k').to_pylist()",
        "x = scalar.as_py()",
        "for row in frame.iterrows(): pass",
        "for row in df.itertuples(): pass",
        "for row in df.collect(): pass",
        "found = df.collect()\nfor row in found: pass",
        "for row in table: pass",
        "for i, row in enumerate(self.rows): pass",
        "for i in range(table.num_rows): pass",
        "for i in range(len(rows)): pass",
        "keys = [f(k) for k in column]",
        "for value in array.to_numpy(): pass",
        "f = np.vectorize(g)",
    ],
)
def test_the_detector_flags_a_planted_row_loop(planted: str) -> None:
    assert row_loops(planted)


@pytest.mark.parametrize(
    "innocent",
    [
        "for column in table.columns: pass",
        "for batch in reader: pass",
        "for name in table.column_names: pass",
        "for run in runs: pass",
        "manifests = df.collect()",
        "for row in df.collect():  # bounded: one row a task\n    pass",
    ],
)
def test_the_detector_leaves_columnar_code_alone(innocent: str) -> None:
    assert not row_loops(innocent)


def test_a_bounded_mark_without_a_reason_excuses_nothing() -> None:
    assert row_loops("for row in df.collect():  # bounded:\n    pass")


def test_the_other_detectors_flag_what_is_planted() -> None:
    assert gateway_uses("spark.sparkContext.parallelize([1])") == [1]
    assert gateway_uses("df.rdd.count()") == [1]
    assert deletions("path.unlink()") == deletions("shutil.rmtree(place)") == deletions("os.remove(p)") == [1]
    assert deletions("from holdfast.storage.atomic import discard, fsync_dir") == [1]
    assert deletions("seen.remove(one)\nseen.discard(one)\nfrom holdfast.flow.endpoints import discard") == []
    assert list(reached('crashpoints.reach("a.b")\nreach(name)')) == ["a.b", None]
    assert names_read("limits.A\nfrom x import B\nC = 1") == {"limits", "A"}
    assert matching_lines(UNFINISHED, "x = 1  # TODO later\nbefore nowhere") == [1]
    # Put together, so that this file holds no such path itself.
    elsewhere, inside, joined = (
        "/".join([start, "root", "x')"]) for start in ("open('", "open('in", "'{base}")
    )
    assert matching_lines(MACHINE_PATH, f"{elsewhere}\n{inside}\n{joined}") == [1]


@pytest.mark.parametrize("package", COLUMNAR)
def test_no_row_at_a_time_code_where_the_rows_are(package: str) -> None:
    assert offences(python_files(package), row_loops) == []


def test_only_what_classic_and_connect_sessions_share_is_used() -> None:
    files = [file for file in python_files() if SRC / "bench" not in file.parents]
    assert offences(files, gateway_uses) == []


def test_only_those_delete_whose_business_it_is() -> None:
    playing = [SRC / package for package in PLAYING]
    files = [file for file in python_files() if not any(root in file.parents for root in playing)]
    found = {str(file.relative_to(SRC)) for file in files if deletions(file.read_text())}
    assert found == set(DELETERS)


def test_no_machine_paths_in_tracked_files() -> None:
    files = [file for file in tracked_files() if file.name != ".gitignore"]
    assert offences(files, lambda text: matching_lines(MACHINE_PATH, text)) == []


def test_nothing_is_left_unfinished_in_source_or_docs() -> None:
    kept = (ROOT / "src", ROOT / "docs")
    files = [file for file in tracked_files() if any(root in file.parents for root in kept)]
    assert offences(files, lambda text: matching_lines(UNFINISHED, text)) == []


def test_no_source_file_is_too_long_to_read() -> None:
    sizes = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in python_files()}
    assert {name: size for name, size in sizes.items() if size > FILE_LINES_MAX} == {}


def test_every_crash_point_is_reached_and_every_reach_is_listed() -> None:
    found = {point for file in python_files() for point in reached(file.read_text())}
    assert found == set(crashpoints.POINTS)


def test_every_limit_is_read_somewhere() -> None:
    named = {name for name in vars(limits) if name.isupper()}
    read = {
        name for file in python_files() if file.name != "limits.py" for name in names_read(file.read_text())
    }
    assert named - read == set()
