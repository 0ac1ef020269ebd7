"""Which Holdfast this is, as it was installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("holdfast")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0"
