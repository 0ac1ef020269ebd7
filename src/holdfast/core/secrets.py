"""What nobody may read who was not told it: passwords, keys, the values of settings.

One mechanism for each need. Texts that people read, or that the ledger keeps, go through `without_secrets`. Where it only has to
be known whether something has changed, a seal is kept in its place. A child process is told through a file without a name.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# Settings as pairs of a name and a value. Some are secrets, so they are never shown.
Settings = tuple[tuple[str, str], ...]

_SECRET = re.compile(r"secret|password|token|key|credential|sas", re.IGNORECASE)
# In `user:password@host`, and in what addresses and connection strings carry behind `?`, `&` and `;`.
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]*@")
_PARAMETER = re.compile(r"([?&;][a-z_-]*(?:password|secret|token)=)[^?&;\s\"']+", re.IGNORECASE)
# Values of settings such as `...key.enabled`: to take them out of every text would leave nothing to read.
_PLAIN = re.compile(r"true|false|-?[0-9]{1,5}", re.IGNORECASE)

_SALT_BYTES = 16
# 16 MiB and a few dozen milliseconds a guess, once per start of a supervisor.
_COST, _BLOCK, _LANES = 2**14, 8, 1


def without_secrets(text: str, settings: Iterable[tuple[str, str]] = ()) -> str:
    """A text in which no secret of the settings stands, and no password of an address.

    >>> without_secrets("no access to s3://me:pass@host with abc", (("secret_access_key", "abc"), ("region", "no")))
    'no access to s3://me:***@host with ***'
    >>> without_secrets("sc://host:15002/;token=abc;use_ssl=true")
    'sc://host:15002/;token=***;use_ssl=true'
    """
    for name, value in settings:
        if value and _SECRET.search(name) and not _PLAIN.fullmatch(value):
            text = text.replace(value, "***")
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def sealed(text: str, like: str | None = None) -> str:
    """A salted digest that is slow to guess at; equal to `like` if that is the seal of the same text.

    >>> first = sealed("abc")
    >>> sealed("abc", first) == first, sealed("abd", first) == first, sealed("abc") == first
    (True, False, False)
    """
    salt = _salt_of(like) or secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.scrypt(text.encode(), salt=salt, n=_COST, r=_BLOCK, p=_LANES, dklen=32)
    return f"{salt.hex()}:{digest.hex()}"


@contextmanager
def unnamed_file(text: str) -> Iterator[int]:
    """A file in memory that has no name, opened at its beginning, to be handed to a child process.

    It is on no disk and in no argument list, and goes with the last process that holds it open, however that ends. Unlike
    a pipe it never makes the writer wait for a reader.
    """
    fd = os.memfd_create("holdfast")
    try:
        with open(fd, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _salt_of(seal: str | None) -> bytes:
    return bytes.fromhex(seal.partition(":")[0]) if seal else b""
