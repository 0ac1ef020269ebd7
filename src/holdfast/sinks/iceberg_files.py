"""How pyiceberg writes to a local disk: what a file holds, and its name, are there before anything names the file.

A catalog makes a commit durable, and pyiceberg would leave the files of the commit in memory: after a power cut the
catalog would name what is not there. On other stores files are as pyiceberg writes them.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from holdfast.storage import atomic


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's own, but for new files on a local disk."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _LocalFile(location, path, self.fs_by_scheme(scheme, netloc))


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        atomic.make_dirs(Path(self._path).parent)
        return _Writer(io.FileIO(self._path, "w" if overwrite else "x"))


class _Writer(io.BufferedWriter):
    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        name = Path(str(self.name))
        super().close()
        atomic.fsync_dir(name.parent)
