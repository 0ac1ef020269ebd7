"""Full load: a directory that always holds some files more than were read, however fast they are.

Files come from a pool that is made up front and shared by all sides; a link puts one into a side's own directory. The
pool grows if a side reads more than was foreseen. Names, contents and modification times depend on the number alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.bench.event_data import key_file

# Files that wait while a side reads.
AHEAD = 20


@dataclass(frozen=True)
class Pool:
    """Numbered files of uniformly drawn keys, in a directory of their own."""

    directory: Path
    keys: int
    rows: int
    span_s: int
    seed: int

    def file(self, number: int) -> Path:
        """The file with a number, made if it is not there yet."""
        return key_file(
            self.directory, number, keys=self.keys, rows=self.rows, span_s=self.span_s, seed=self.seed
        )

    def fill(self, files: int) -> None:
        """Make the first files, so that nothing has to be made while something is measured."""
        for number in range(files):
            self.file(number)


class Feed:
    """Gives one side the files of a pool, in their order."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self.directory = directory
        self.given = 0
        self._pool = pool
        directory.mkdir(parents=True)

    def keep_ahead(self, read: int, ahead: int = AHEAD) -> None:
        """Give as many as are missing to be so many ahead of what was read."""
        while self.given < read + ahead:
            self.give()

    def give(self) -> None:
        """Give the next file; it appears whole."""
        made = self._pool.file(self.given)
        os.link(made, self.directory / made.name)
        self.given += 1
