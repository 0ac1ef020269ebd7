"""PostgreSQL of Debian's package: loopback only, password required, data kept over restarts.

The server refuses to run as root. Started by root, it runs as the user `postgres`, and its data goes where
that user can reach it: into the service's directory, or else beside other temporary files, under a name that
follows from the path of the directory.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from serving import place, process
from serving.place import Unavailable
from serving.service import Service

ACCOUNT = "holdfast"
INITDB_S_MAX = 120
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "shared_buffers": "32MB",
    "logging_collector": "off",
}


class Postgres(Service):
    name = "postgres"
    variable = "HOLDFAST_TEST_POSTGRES"
    ready_s_max = 60
    polite_end = signal.SIGINT  # on SIGTERM it would wait for its clients to leave

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.user = "postgres" if os.getuid() == 0 else None

    @property
    def base(self) -> Path:
        """Where the data is: chosen once, since what the server's user can reach may change."""
        return Path(place.read(self.home / "base") or self.home)

    @property
    def password(self) -> str:
        return place.read(self.home / "password") or ""

    def prepare(self, port: int) -> list[str]:
        if not binary("postgres"):
            place.install("postgresql", "no PostgreSQL")
        server = binary("postgres")
        if not server:
            raise Unavailable("no PostgreSQL, neither by pg_config nor under /usr/lib/postgresql")
        if self.user and not has_account(self.user):
            raise Unavailable(f"root cannot run PostgreSQL, and there is no user {self.user}")
        if place.read(self.home / "made") is None:
            self.make_data()
        self.forget_the_dead()
        options = [word for key, value in SETTINGS.items() for word in ("-c", f"{key}={value}")]
        return [server, "-D", str(self.base / "data"), "-p", str(port), *options]

    def make_data(self) -> None:
        """Make the data directory. `made` is written last: without it, this begins anew."""
        place.write(self.home / "base", str(self.choose_base()))
        place.write(self.home / "password", secrets.token_hex(16))
        data, password = self.base / "data", self.base / "initial-password"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(mode=0o700)
        place.write(password, self.password)
        if self.user:
            shutil.chown(data, self.user, self.user)
            shutil.chown(password, self.user, self.user)
        try:
            place.run(
                binary("initdb"), "-D", data, "-U", ACCOUNT, "--pwfile", password, "--auth", "scram-sha-256",
                "--encoding", "UTF8", "--locale", "C", "--no-instructions",
                what="initdb", time_s_max=INITDB_S_MAX, cwd="/", **self.as_user(),
            )  # fmt: skip
        finally:
            password.unlink()
        place.write(self.home / "made", "yes")

    def choose_base(self) -> Path:
        if not self.user:
            return self.home
        self.home.chmod(0o711)
        mark = hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:12]
        beside = [Path(root) / f"holdfast-{mark}" for root in (os.environ.get("TMPDIR"), "/var/tmp") if root]
        for folder in (self.home, *beside):
            folder.mkdir(mode=0o711, exist_ok=True)
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise Unavailable(f"{folder} belongs to someone else")
            if subprocess.run(["test", "-x", folder], cwd="/", **self.as_user()).returncode == 0:
                return folder
        raise Unavailable(f"no directory that the user {self.user} can reach")

    def as_user(self) -> dict[str, object]:
        return {"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}

    def forget_the_dead(self) -> None:
        """Drop the lock file of our own server if that has ended.

        PostgreSQL believes the pid in it, also when it is a zombie that nobody reaps or belongs to another.
        """
        lock = self.base / "data" / "postmaster.pid"
        dead = process.load(self.home / "process")
        if dead and not dead.runs and (place.read(lock) or "").split("\n")[0] == str(dead.pid):
            lock.unlink()

    def address(self, port: int) -> str:
        return f"postgresql://{ACCOUNT}:{self.password}@127.0.0.1:{port}/postgres"

    def answers(self, port: int) -> bool:
        asked = subprocess.run(
            [binary("psql") or "psql", "-h", "127.0.0.1", "-p", str(port), "-U", ACCOUNT, "-d", "postgres",
             "-w", "-X", "-A", "-t", "-c", "SELECT 1"],
            env={**os.environ, "PGPASSWORD": self.password, "PGCONNECT_TIMEOUT": "5"},
            cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        return asked.returncode == 0

    def remove(self) -> None:
        base = self.base
        super().remove()
        shutil.rmtree(base, ignore_errors=True)


def has_account(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def binary(name: str) -> str | None:
    """A program of the newest PostgreSQL; Debian keeps the server's off the path."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0,
        reverse=True,
    )
    if pg_config := shutil.which("pg_config"):
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True)
        folders.insert(0, Path(asked.stdout.strip() or "/nonexistent"))
    found = (folder / name for folder in folders if (folder / "postgres").exists())
    return next((str(file) for file in found if file.exists()), None)
