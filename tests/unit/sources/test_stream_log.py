"""The log of a stream: batches are whole, each number once, and a deposed process adds nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, InputError
from holdfast.sources.stream_log import StreamLog


def log_at(tmp_path: Path, generation: int = 1) -> StreamLog:
    log = StreamLog(tmp_path / "streams" / "s")
    log.claim(generation)
    return log


def added(log: StreamLog, number: int | None, says: str = "") -> None:
    draft = log.batches / f".draft-{says}"
    draft.mkdir()
    (draft / "batch.json").write_text(json.dumps({"files": [], "columns": says}))
    log.add(draft, number)


def test_the_first_whole_batch_of_a_number_stays(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    added(log, 4, "first")
    added(log, 4, "second")
    assert log.numbers() == [4]
    assert log.facts(4)["columns"] == "first"
    assert [path.name for path in log.batches.iterdir()] == ["0000000004"]


def test_batches_without_a_number_take_the_next_one_and_none_twice(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    for number in range(3):
        added(log, None, str(number))
    log.trim(2)
    assert log.numbers() == [2]  # the highest stays, so that its number is not given again
    added(log, None, "3")
    log.trim(2)
    assert log.numbers() == [3]


def test_a_claim_deposes_those_before_it_and_no_late_claim_takes_it_back(tmp_path: Path) -> None:
    log = log_at(tmp_path, 7)
    log.check_claim(7)
    log.claim(9)
    log.claim(9)  # said again by the same process
    with pytest.raises(FencedError, match="generation 9"):
        log.check_claim(7)
    with pytest.raises(FencedError, match="generation 9"):
        log.claim(8)
    log.check_claim(9)


def test_a_claim_throws_away_what_was_not_finished(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    (log.batches / ".0000000003.x").mkdir()
    log.claim(2)
    assert list(log.batches.iterdir()) == []


def test_a_stream_that_resumes_needs_the_checkpoint_of_its_batches(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    kept = log.checkpoint(1, resumes=True)
    assert log.checkpoint(2, resumes=True) == kept
    added(log, 0)
    assert log.checkpoint(3, resumes=True) == kept
    kept.rmdir()
    with pytest.raises(InputError, match="checkpoint that they go with is not there"):
        log.checkpoint(4, resumes=True)


def test_a_stream_that_cannot_resume_begins_with_a_new_checkpoint(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    first = log.checkpoint(1, resumes=False)
    second = log.checkpoint(2, resumes=False)
    assert first != second
    assert not first.exists()
    added(log, None)
    with pytest.raises(InputError, match="resumes=False before"):
        log.checkpoint(3, resumes=True)
