"""A URL is not taken for the name of a directory here."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.errors import PlanError


@pytest.mark.parametrize(
    "url", ["s3a://bucket/in", "s3://bucket", "hdfs:///in", "gs://b/x", "file://other/in"]
)
def test_a_url_is_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(PlanError, match=r"(?s)is a URL.*Mount it.*hf\.read_stream"):
        hf.files(url, schema="k long")
    with pytest.raises(PlanError, match=r"(?s)is a URL.*Mount it.*hf\.delta"):
        hf.parquet(url)


@pytest.mark.parametrize("given", ["", None, 3])
def test_what_is_no_path_is_refused(given: object) -> None:
    with pytest.raises(PlanError, match="is not the path of what hf.files reads"):
        hf.files(given, schema="k long")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("in/", "in/"),
        (Path("in") / "orders", "in/orders"),
        ("a:b/c", "a:b/c"),
        ("c:/in", "c:/in"),
        ("file:///a%20b/in", "/a b/in"),
        ("file:/in", "/in"),
        ("file://localhost/in", "/in"),
    ],
)
def test_a_path_of_this_machine_is_taken(given: str | Path, path: str) -> None:
    assert hf.files(given, schema="k long").path == path
    assert hf.parquet(given).path == path
