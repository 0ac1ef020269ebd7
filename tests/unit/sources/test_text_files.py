"""What one look through a text file finds."""

from __future__ import annotations

import bz2
import csv
import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from holdfast.flow.endpoints import CsvOptions
from holdfast.sources import text_files
from holdfast.sources.fitness import Unfit
from holdfast.sources.text_files import csv_facts, json_facts

TWO = t.StructType([t.StructField("a", t.StringType()), t.StructField("b", t.IntegerType())])
BARE = CsvOptions(header=False)


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", 0), (b"x", 1), (b"x\n", 1), (b"x\ny", 2), (b"x\r\ny\r\n", 2), (b"x\ry\r", 2), (b"\n\n", 2)],
)
def test_lines_are_counted_whatever_ends_them(content: bytes, lines: int) -> None:
    assert json_facts(io.BytesIO(content), "f.json").rows == lines


@given(st.lists(st.sampled_from(["x", "", "\r", "\n", "\r\n", "é", "ab"])), st.integers(1, 4))
def test_lines_are_counted_across_the_borders_of_chunks(parts: list[str], chunk: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_CHUNK_BYTES", chunk)
        found = json_facts(io.BytesIO(text.encode()), "f.json").rows
    assert found == len(list(io.StringIO(text, newline=None)))


@given(
    st.lists(st.lists(st.text('a",\n', max_size=4), min_size=2, max_size=2), max_size=6), st.integers(1, 5)
)
def test_line_breaks_inside_quotes_are_found_where_python_writes_them(
    rows: list[list[str]], chunk: int
) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows(rows)
    file = io.BytesIO(written.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_CHUNK_BYTES", chunk)
        if any("\n" in value for row in rows for value in row):
            with pytest.raises(Unfit, match=r"line \d+ ends inside quotes"):
                csv_facts(file, "f.csv", TWO, BARE)
            file.seek(0)
            assert csv_facts(file, "f.csv", TWO, CsvOptions(False, ",", True)).rows >= len(rows)
        else:
            assert csv_facts(file, "f.csv", TWO, BARE).rows == len(rows)


def test_the_line_with_the_open_quote_is_named() -> None:
    for text in ('a,b\nx,1\n"y,2\nz,3\n', 'a,b\nx,1\n"y,2'):
        with pytest.raises(Unfit, match="line 3 ends inside quotes") as caught:
            csv_facts(io.BytesIO(text.encode()), "f.csv", TWO, CsvOptions())
        assert "multiline=True" in caught.value.hint
    with pytest.raises(Unfit, match="ends inside quotes"):
        csv_facts(io.BytesIO(b'a,b\n"y,2\n'), "f.csv", TWO, CsvOptions(multiline=True))


@pytest.mark.parametrize("header", ["b,a", "a", "a,b,c", "A,b", "x,1", ""])
def test_a_header_that_is_not_the_declared_columns_is_refused(header: str) -> None:
    with pytest.raises(Unfit, match="declared are a, b"):
        csv_facts(io.BytesIO(f"{header}\nx,1\n".encode()), "f.csv", TWO, CsvOptions())


@pytest.mark.parametrize("header", ["a,b", '"a","b"', "\ufeffa,b", "a,b\r"])
def test_a_header_is_no_row(header: str) -> None:
    assert csv_facts(io.BytesIO(f"{header}\nx,1\n".encode()), "f.csv", TWO, CsvOptions()).rows == 1
    assert csv_facts(io.BytesIO(f"{header}".encode()), "f.csv", TWO, CsvOptions()).rows == 0


def test_another_separator_is_used_for_the_header() -> None:
    assert csv_facts(io.BytesIO(b"a\tb\nx\t1\n"), "f.csv", TWO, CsvOptions(separator="\t")).rows == 1


@pytest.mark.parametrize("content", ["é".encode("latin-1"), "abc".encode("utf-16"), "é".encode()[:1]])
def test_what_is_not_utf8_is_refused(content: bytes) -> None:
    with pytest.raises(Unfit, match="not UTF-8"):
        json_facts(io.BytesIO(content), "f.json")


def test_compressed_files_are_read_by_their_name_and_damage_is_found() -> None:
    for pack, name in ((gzip.compress, "f.json.gz"), (bz2.compress, "f.json.bz2")):
        packed = pack(b"{}\n" * 1000)
        assert json_facts(io.BytesIO(packed), name).rows == 1000
        with pytest.raises(Unfit, match="cannot be decompressed"):
            json_facts(io.BytesIO(packed[:-10]), name)
        with pytest.raises(Unfit, match="cannot be decompressed"):
            json_facts(io.BytesIO(b"{}\n"), name)
