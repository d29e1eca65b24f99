"""The store's memory on disk: one SQLite file in WAL mode, one row an object.

Invariants:

- A row is written by one statement, which is one transaction: after `kill -9` at any moment the file holds exactly the
  writes that returned, plus at most the one under way, whole.
- The counter never goes back, also when the newest write was a deletion.
- `synchronous=NORMAL`: a power cut (not a killed process) may lose the last moments, never the file's integrity.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kubekit.errors import Terminal
from tinykube.apiserver.store import StoreEntry

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (resource, key)
);
CREATE TABLE IF NOT EXISTS deletions (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS deletion_counts AFTER UPDATE OF version ON objects WHEN new.data = x'' BEGIN
    INSERT OR REPLACE INTO deletions VALUES (1, new.version);
    DELETE FROM objects WHERE resource = new.resource AND key = new.key;
END;
"""

# Updating in place and keeping the rows out of the index take half the time of the obvious INSERT OR REPLACE.
_PUT = """
INSERT INTO objects VALUES (?, ?, ?, ?)
ON CONFLICT (resource, key) DO UPDATE SET version = excluded.version, data = excluded.data
"""


class SQLiteJournal:
    """Opened on `path`, which is made if missing. Raises Terminal when the file is locked or no database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            # Exclusive: a second server on the same directory must fail here and not mix two counters.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA wal_autocheckpoint=4000")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise Terminal(
                f"cannot open the cluster's data: {error}",
                where=str(path),
                cure="stop the API server that uses this directory, or give another --data-dir",
            ) from error

    def put(self, resource: str, key: str, version: int, raw: bytes) -> None:
        self._db.execute(_PUT, (resource, key, version, raw))

    def remove(self, resource: str, key: str, version: int) -> None:
        # One statement, so that the counter and the row change together; the trigger does the rest.
        self._db.execute(
            "UPDATE objects SET data = x'', version = ? WHERE resource = ? AND key = ?", (version, resource, key)
        )

    def version(self) -> int:
        """The highest number that was ever given out."""
        newest = self._db.execute("SELECT max(version) FROM objects").fetchone()[0] or 0
        deleted = self._db.execute("SELECT max(version) FROM deletions").fetchone()[0] or 0
        return max(newest, deleted)

    def load(self) -> Iterator[tuple[str, StoreEntry]]:
        """Every object with the resource it belongs to."""
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        for resource, key, version, data in self._db.execute("SELECT resource, key, version, data FROM objects"):
            namespace, _, name = key.partition("/")
            entry = StoreEntry(namespace, name, key, decode(data), version)
            yield resource, entry

    def close(self) -> None:
        self._db.close()
