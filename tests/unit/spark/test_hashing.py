"""What hashing costs; that it is Spark's, bit for bit, shows tests/spark/test_direct.py."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.spark import hashing


def test_the_longest_value_is_not_what_all_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    rotated = hashing._rotated

    def counted(h: hashing.Words, by: int) -> hashing.Words:
        nonlocal steps
        steps += 1
        return rotated(h, by)

    monkeypatch.setattr(hashing, "_rotated", counted)
    short = ["x" * length for length in range(500)]
    alone = hashing.hash_columns([pa.array(short)])
    needed, steps = steps, 0
    with_long = hashing.hash_columns([pa.array([*short[:250], "x" * 10_000_000, *short[250:]])])
    assert [*with_long[:250], *with_long[251:]] == alone.tolist()
    assert steps == needed
