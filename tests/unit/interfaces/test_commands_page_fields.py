"""docs/COMMANDS.md names every field of the JSON that commands print."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# What makes the JSON of status, workers, epochs, substreams, snapshot and explain, and what sources and sinks add to the last.
MAKERS = [
    "ledger/status.py",
    "ledger/roster.py",
    "ledger/history.py",
    "ledger/substream_list.py",
    "ledger/snapshot_report.py",
    "ledger/unread.py",
    "interfaces/cli/failure.py",
    "interfaces/cli/failover.py",
    "interfaces/cli/state.py",
    "interfaces/cli/scrub.py",
    "interfaces/cli/reset.py",
    "interfaces/cli/snapshot/create.py",
    "interfaces/cli/snapshot/restore.py",
    "interfaces/cli/snapshot/delete.py",
    "runtime/reset.py",
    "flow/explain.py",
    "flow/nodes.py",
    "flow/windows.py",
    "flow/substreams.py",
    "flow/endpoints.py",
    "flow/table_sink.py",
    "flow/kafka.py",
    "flow/lake.py",
    "flow/streams.py",
    "flow/generate.py",
    "flow/own_edges.py",
]


def named(page: str) -> set[str]:
    """All words in code on a page, but for its blocks."""
    code = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    return set(re.findall(r"\w+", " ".join(code)))


@pytest.mark.parametrize("maker", MAKERS)
def test_every_field_is_on_the_page(maker: str) -> None:
    tree = ast.parse((ROOT / "src" / "holdfast" / maker).read_text())
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    fields = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    assert fields - named((ROOT / "docs" / "COMMANDS.md").read_text()) == set()
