"""The ledger's file is in the work directory, whatever that is called."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.status import status


@pytest.mark.parametrize("name", ["what?", "a?mode=memory&b", "#1", "100%20", "file:x", "ä b"])
def test_a_work_directory_may_have_any_name(name: str, tmp_path: Path) -> None:
    work = tmp_path / name
    work.mkdir()
    with closing(Ledger(work)) as ledger:
        assert holder.take(ledger, "flow") == 1
    assert (work / "ledger.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with closing(Ledger(work)) as again:
        assert holder.take(again, "flow") == 2
    with reading(work):
        assert status(work)["flow"] == "flow"
