"""Hourly sums of all meters, in one SQLite file: for clusters without Prometheus.

Invariants:

- The sums and the readings that they were made of are one transaction. A process that is killed at any moment has added
  a reading or not; the next reading adds what is missing, since the counters of the meters go on.
- Days are sums of their hours, so that a month of very many pods is added up fast.
- Hours older than `KEPT_DAYS` are deleted, `DELETED_AT_ONCE` with each new hour at most: a clock that is wrong for a
  while costs the oldest hours, not all of them.
- A reader has a connection of its own, and sees whole transactions only. There is one writer.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpuplane.metering.growth import (
    HOUR,
    Amounts,
    CounterReading,
    Growth,
    Labels,
    LastReading,
    grown,
    spread,
)
from kubekit.errors import Retryable, Terminal

KEPT_DAYS: Final = 400
DELETED_AT_ONCE: Final = 2  # hours
VERSION: Final = 1
_DAY: Final = 24  # hours
_SUMS: Final = "held REAL NOT NULL, used REAL, energy REAL"
_SCHEMA: Final = f"""
CREATE TABLE store (began REAL NOT NULL, hour INTEGER NOT NULL, hours INTEGER NOT NULL);
CREATE TABLE series (id INTEGER PRIMARY KEY, labels TEXT NOT NULL UNIQUE, pods INTEGER NOT NULL);
CREATE TABLE nodes (node TEXT PRIMARY KEY, lives TEXT NOT NULL, seconds REAL, hours INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE last (node TEXT NOT NULL, series INTEGER NOT NULL, {_SUMS}, PRIMARY KEY (node, series)) WITHOUT ROWID;
CREATE TABLE hours (hour INTEGER NOT NULL, series INTEGER NOT NULL, {_SUMS}, PRIMARY KEY (hour, series)) WITHOUT ROWID;
CREATE TABLE days (hour INTEGER NOT NULL, series INTEGER NOT NULL, {_SUMS}, PRIMARY KEY (hour, series)) WITHOUT ROWID;
CREATE TABLE waiting (hour INTEGER PRIMARY KEY, seconds REAL NOT NULL, pod_seconds REAL NOT NULL);
PRAGMA user_version = {VERSION};
"""
_ADD: Final = """
INSERT INTO {} VALUES (?, ?, ?, ?, ?) ON CONFLICT (hour, series) DO UPDATE SET held = held + excluded.held,
used = CASE WHEN excluded.used IS NULL THEN used ELSE ifnull(used, 0) + excluded.used END,
energy = CASE WHEN excluded.energy IS NULL THEN energy ELSE ifnull(energy, 0) + excluded.energy END
"""
_WAIT: Final = """
INSERT INTO waiting VALUES (?, ?, ?) ON CONFLICT (hour) DO UPDATE SET seconds = seconds + excluded.seconds,
pod_seconds = pod_seconds + excluded.pod_seconds
"""
# The labels come last: with them in the groups, a month takes more than twice as long.
_OF_SERIES: Final = """
SELECT labels, held, used, energy FROM (
    SELECT series, sum(held) AS held, sum(used) AS used, sum(energy) AS energy FROM (
        SELECT series, held, used, energy FROM hours WHERE hour >= :begin AND hour < :first
        UNION ALL SELECT series, held, used, energy FROM days WHERE hour >= :first AND hour < :last
        UNION ALL SELECT series, held, used, energy FROM hours WHERE hour >= :last AND hour <= :end
    ) GROUP BY series
) JOIN series ON series.id = series
"""
_OF_HOURS: Final = """
SELECT hour, pods, sum(held), sum(used) FROM hours JOIN series ON id = series WHERE hour BETWEEN ? AND ?
GROUP BY hour, pods
"""
_WAITED: Final = "SELECT hour, pod_seconds / seconds FROM waiting WHERE hour BETWEEN ? AND ? AND seconds > 0"


class HourSums(NamedTuple):
    """One hour (since 1970) of the whole cluster: GPU seconds held by pods and by none, used by pods; and pods that
    waited on average, None where nothing counted them.
    """

    hour: int
    held: float
    free: float
    used: float | None
    waiting: float | None


class HistoryStore:
    """The store at a path, which is made if it is missing. Times are Unix times.

    Raises Terminal for a file of another format or a damaged one, and Retryable where the disk refuses.
    """

    def __init__(self, path: Path, now: float) -> None:
        self.path = path
        self._turn = threading.Lock()
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._connected()
            if self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} INSERT INTO store VALUES ({now!r}, 0, 0); COMMIT;")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                self._db.close()
                cure = "delete the file, or run the gpuplane that wrote it"
                raise Terminal(f"the store has format {version}, not {VERSION}", where=str(path), cure=cure)
            (self.began,) = self._db.execute("SELECT began FROM store").fetchone()

    def _connected(self) -> sqlite3.Connection:
        # The lock above gives the threads their turns.
        found = sqlite3.connect(self.path, isolation_level=None, timeout=5.0, check_same_thread=False)
        try:
            found.execute("PRAGMA journal_mode=WAL")
            # A power cut may lose the last readings, with their sums; the next reading adds them again.
            found.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error:
            found.close()
            raise
        return found

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise Retryable(f"the store of sums does not work: {error}", where=str(self.path)) from error
        except sqlite3.Error as error:
            cure = "move the file away; a new one is made"
            raise Terminal(f"the store of sums is damaged: {error}", where=str(self.path), cure=cure) from error

    def close(self) -> None:
        with self._turn:
            self._db.close()

    def add(
        self, readings: Iterable[CounterReading], now: float, *, waiting: tuple[float, float] | None = None
    ) -> None:
        """Add readings of meters in one transaction.

        Args:
            now: when they were read.
            waiting: seconds since the last call, and pods that wait by these seconds.
        """
        with self._turn, self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for reading in readings:
                    found = grown(self._last(reading.node), reading, now - self.began)
                    if found is not None:
                        self._write(reading.node, found, now)
                if waiting is not None:
                    self._db.execute(_WAIT, (int(now // HOUR), *waiting))
                self._forget(int(now // HOUR))
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _last(self, node: str) -> LastReading | None:
        row = self._db.execute("SELECT lives, seconds FROM nodes WHERE node = ?", (node,)).fetchone()
        if row is None:
            return None
        listed = self._db.execute(
            "SELECT labels, held, used, energy FROM last JOIN series ON series.id = series WHERE node = ?", (node,)
        )
        counters = {labels_of(text): Amounts(*amounts) for text, *amounts in listed}
        return LastReading(tuple(msgspec.json.decode(row[0], type=list[str])), row[1], counters)

    def _write(self, node: str, found: Growth, now: float) -> None:
        run = self._db.executemany
        ids = {labels: self._id(labels) for labels in found.last.counters}
        added = sorted((ids[labels], amounts) for labels, amounts in found.added.items() if any(amounts))
        parts = list(spread(now, found.seconds))
        # In the order of the tables: rows of many hours would else be written all over the file.
        run(_ADD.format("hours"), _rows(parts, added))
        run(_ADD.format("days"), _rows(_of_days(parts), added))
        self._db.execute("DELETE FROM last WHERE node = ?", (node,))
        lasts = [(node, ids[labels], *amounts) for labels, amounts in found.last.counters.items()]
        run("INSERT INTO last VALUES (?, ?, ?, ?, ?)", lasts)
        lives = msgspec.json.encode(found.last.lives).decode()
        row = (node, lives, found.last.seconds)
        self._db.execute("INSERT OR REPLACE INTO nodes SELECT ?, ?, ?, hours FROM store", row)

    def _id(self, labels: Labels) -> int:
        text = msgspec.json.encode(labels).decode()
        row = self._db.execute("SELECT id FROM series WHERE labels = ?", (text,)).fetchone()
        if row is None:
            given = (text, any(name == "pod" for name, _ in labels))
            row = self._db.execute("INSERT INTO series (labels, pods) VALUES (?, ?) RETURNING id", given).fetchone()
        number: int = row[0]
        return number

    def _forget(self, hour: int) -> None:
        """Delete what is too old, once in an hour."""
        run = self._db.execute
        if run("UPDATE store SET hour = ?, hours = hours + 1 WHERE hour <> ?", (hour, hour)).rowcount == 0:
            return
        end = hour - KEPT_DAYS * _DAY
        for table in ("waiting", "hours"):
            for _ in range(DELETED_AT_ONCE):
                oldest = f"(SELECT min(hour) FROM {table})"
                run(f"DELETE FROM {table} WHERE hour = {oldest} AND hour < ?", (end,))
        # A day goes once its hours have gone.
        run("DELETE FROM days WHERE hour <= min(?, ifnull((SELECT min(hour) FROM hours), ?)) - ?", (end, end, _DAY))
        # NB: by the number of hours, not by the clock: a node that is forgotten too early counts from where it is then.
        silent = "SELECT node FROM nodes WHERE hours < (SELECT hours FROM store) - ? AND seconds NOT NULL"
        old = run(silent, (KEPT_DAYS * _DAY,)).fetchall()
        self._db.executemany("UPDATE nodes SET seconds = NULL WHERE node = ?", old)
        self._db.executemany("DELETE FROM last WHERE node = ?", old)
        if hour % _DAY == 0:
            used = "SELECT series FROM days UNION SELECT series FROM last"
            run(f"DELETE FROM series WHERE id NOT IN ({used})")

    def sums(self, begin: float, end: float) -> list[tuple[Labels, Amounts]]:
        """Return the sums of the hours from that of `begin` to that of `end`, by series."""
        first, last = int(begin // HOUR), int(end // HOUR)
        with self._explained(), closing(self._connected()) as db:
            db.execute("BEGIN")
            (newest,) = db.execute("SELECT ifnull(max(hour), 0) FROM hours").fetchone()
            # The day of the newest hour is whole as far as it goes.
            end = last + 1 if newest > last else (last // _DAY + 1) * _DAY
            days = -(-first // _DAY) * _DAY, end // _DAY * _DAY
            if days[0] >= days[1]:
                days = (last + 1, last + 1)
            given = {"begin": first, "first": days[0], "last": days[1], "end": last}
            return [(labels_of(text), Amounts(*amounts)) for text, *amounts in db.execute(_OF_SERIES, given)]

    def hours(self, begin: float, end: float) -> list[HourSums]:
        """Return the hours from that of `begin` to that of `end` in which something was read, the oldest first."""
        first, last = int(begin // HOUR), int(end // HOUR)
        with self._explained(), closing(self._connected()) as db:
            found = {False: dict[int, tuple[float, float | None]](), True: dict[int, tuple[float, float | None]]()}
            for hour, pods, held, used in db.execute(_OF_HOURS, (first, last)):
                found[bool(pods)][hour] = held, used
            waited = dict(db.execute(_WAITED, (first, last)))
        none = (0.0, None)
        return [
            HourSums(
                hour=hour,
                held=found[True].get(hour, none)[0],
                free=found[False].get(hour, none)[0],
                used=found[True].get(hour, none)[1],
                waiting=waited.get(hour),
            )
            for hour in sorted({*found[True], *found[False], *waited})
        ]


def _of_days(parts: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the parts of hours as parts of days."""
    days: dict[int, float] = {}
    for hour, part in parts:
        day = hour - hour % _DAY
        days[day] = days.get(day, 0.0) + part
    return list(days.items())


def _rows(
    parts: Iterable[tuple[int, float]], added: Sequence[tuple[int, Amounts]]
) -> Iterator[tuple[int, int, float, float | None, float | None]]:
    for hour, part in parts:
        for series, (held, used, energy) in added:
            yield hour, series, held * part, _times(used, part), _times(energy, part)


def _times(amount: float | None, part: float) -> float | None:
    return None if amount is None else amount * part


def labels_of(text: str) -> Labels:
    """Return the labels as they were written."""
    return msgspec.json.decode(text, type=Labels)
