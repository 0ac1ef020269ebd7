"""Looks through a text file once, when it is discovered: is it UTF-8, how many lines, is every quote closed?

What Spark would pass over in silence is found here: bytes that are no UTF-8 (it puts U+FFFD in their place), columns
of a CSV file in another order (it goes by position), and a quote that is still open at the end of a line (it closes
it, and a record that was cut off or goes on in the next line looks whole).
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import numpy as np
from pyspark.sql import types as t

from holdfast.flow.endpoints import CsvOptions
from holdfast.sources.fitness import Facts, Unfit

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES_MAX = 1 << 20
_WHOLE = "Mend it, or write it again as a whole."


def json_facts(file: BinaryIO, name: str) -> Facts:
    """The lines of a file of JSON objects."""
    lines = _Lines()
    for chunk in _text(file, name):
        lines.add(chunk)
    return Facts(lines.number())


def csv_facts(file: BinaryIO, name: str, declared: t.StructType, options: CsvOptions) -> Facts:
    """The lines of a CSV file below its header, which must name the declared columns in their order."""
    lines, quotes, start = _Lines(), _Quotes(options.multiline), b""
    for chunk in _text(file, name):
        if len(start) < _HEADER_BYTES_MAX:
            start += chunk
        quotes.add(chunk, lines.ended)
        lines.add(chunk)
    quotes.close(lines.ended)
    if not options.header or not start:
        return Facts(lines.number())
    _check_header(start, declared, options)
    return Facts(lines.number() - 1)


def _text(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The bytes of a file in chunks, decompressed as Spark does by its name, and found to be UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    try:
        opened = _decompressed(file, name)
        while chunk := opened.read(_CHUNK_BYTES):
            decoder.decode(chunk)
            yield chunk
            position += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise Unfit(
            f"it is not UTF-8 text: the byte {error.object[error.start]:#04x} near position {position + error.start}"
            " belongs to no character",
            "Write it as UTF-8.",
        ) from error
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's fault, not the file's
        raise Unfit(f"it cannot be decompressed: {error}", _WHOLE) from error


def _decompressed(file: BinaryIO, name: str) -> BinaryIO:
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if name.endswith(".bz2"):
        return cast(BinaryIO, bz2.BZ2File(file))
    return file


class _Lines:
    """Counts lines; they end with a line feed, a carriage return, or both."""

    def __init__(self) -> None:
        self.ended = 0
        self._last = b""

    def add(self, chunk: bytes) -> None:
        pairs = chunk.count(b"\r\n") + (self._last == b"\r" and chunk.startswith(b"\n"))
        self.ended += chunk.count(b"\n") + chunk.count(b"\r") - pairs
        self._last = chunk[-1:]

    def number(self) -> int:
        """How many there are, the last one also if nothing ends it."""
        return self.ended + (self._last not in (b"", b"\n", b"\r"))


class _Quotes:
    """Sees to it that no quote is open at the end of a line, or, with `multiline`, of the file."""

    def __init__(self, multiline: bool) -> None:
        self._multiline = multiline
        self._open = 0

    def add(self, chunk: bytes, lines_before: int) -> None:
        if not self._open and b'"' not in chunk:
            return
        data = np.frombuffer(chunk, np.uint8)
        quote = data == ord('"')
        if not self._multiline:
            is_open = (np.cumsum(quote) + self._open) & 1
            cut = np.flatnonzero(((data == ord("\n")) | (data == ord("\r"))) & (is_open == 1))
            if cut.size:
                raise _open_quote(lines_before + _lines_in(chunk[: cut[0]]) + 1)
        self._open = (self._open + int(np.count_nonzero(quote))) & 1

    def close(self, lines: int) -> None:
        if self._open:
            raise _open_quote(lines + 1)


def _lines_in(chunk: bytes) -> int:
    return chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")


def _open_quote(line: int) -> Unfit:
    return Unfit(
        f"line {line} ends inside quotes",
        "Close the quote (a quote inside quotes is written twice); where values hold line breaks, set multiline=True.",
    )


def _check_header(start: bytes, declared: t.StructType, options: CsvOptions) -> None:
    text = start.decode("utf-8-sig", errors="ignore")
    found = next(csv.reader(text.splitlines(keepends=True), delimiter=options.separator), [])
    if found != declared.names:
        raise Unfit(
            f"its header names the columns {', '.join(found)}, and declared are {', '.join(declared.names)}",
            "Declare the columns in the order of the file in schema=, or set header=False if the first line is data.",
        )
