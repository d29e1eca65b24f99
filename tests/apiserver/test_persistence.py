"""The store on disk: whatever was done and wherever the process died, what comes back is what was answered."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.errors import Terminal
from gpuplane.simulator.apiserver import Registry
from gpuplane.simulator.apiserver.failure import ApiFailure
from gpuplane.simulator.apiserver.journal import SQLiteJournal
from gpuplane.simulator.apiserver.store import Store

steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove"]),
        st.sampled_from(["pods", "nodes"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


def run(table, step):
    kind, _, name, value = step
    entry = table.get("ns", name)
    if kind == "put":
        table.put("ns", name, {"metadata": {"name": name}, "value": value})
    elif entry is not None:
        table.remove(entry)


def content(store):
    tables = (store.table(name) for name in ("pods", "nodes"))
    return {(t.resource, key): (entry.version, entry.obj) for t in tables for key, entry in t.items.items()}


def reload(path):
    journal = SQLiteJournal(path)
    store = Store()
    store.restore(journal, list(journal.load()), journal.version())
    return store, journal


@settings(max_examples=40, deadline=None)
@given(steps)
def test_a_copy_taken_at_any_moment_holds_exactly_what_was_written(history):
    """A copy of the files while they are open is what a killed process leaves."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "source")
        store, journal = reload(source / "objects.sqlite")
        for index, step in enumerate(history):
            run(store.table(step[1]), step)
            if index % 5 == 4 or index == len(history) - 1:
                copy = Path(directory, f"copy{index}")
                shutil.copytree(source, copy)
                found, second = reload(copy / "objects.sqlite")
                assert content(found) == content(store)
                assert found.version == store.version
                second.close()
        journal.close()


@settings(max_examples=60, deadline=None)
@given(steps)
def test_indexes_and_events_agree_with_the_objects(history):
    store = Store()
    table = store.table("pods", ("value",))
    seen = {}

    def subscriber(kind, obj, old):
        name = obj["metadata"]["name"]
        assert (old is None) == (name not in seen)
        if kind == "DELETED":
            del seen[name]
        else:
            seen[name] = obj

    table.subscribers.append(subscriber)
    for step in history:
        run(table, step)
    assert seen == {entry.name: entry.obj for entry in table.items.values()}
    events = list(table.events_after(0))
    assert [event.version for event in events] == sorted({event.version for event in events})
    replayed = {}
    for event in events:
        if event.type == "DELETED":
            del replayed[event.entry.name]
        else:
            replayed[event.entry.name] = event.entry.obj
    assert replayed == seen
    for name, entry in table.by_namespace.get("ns", {}).items():
        assert table.items[name] is entry


async def test_a_registry_goes_on_where_it_was(tmp_path):
    journal = SQLiteJournal(tmp_path / "objects.sqlite")
    first = Registry()
    first.restore(journal, [], 0)
    await first.create("configmaps", "default", {"metadata": {"name": "keep"}, "data": {"k": "é"}})
    await first.create("configmaps", "default", {"metadata": {"name": "drop"}})
    await first.delete("configmaps", "default", "drop")
    version, kept = first.store.version, first.get("configmaps", "default", "keep")
    journal.close()

    journal = SQLiteJournal(tmp_path / "objects.sqlite")
    second = Registry()
    second.restore(journal, list(journal.load()), journal.version())
    assert second.get("configmaps", "default", "keep") == kept
    assert second.get("configmaps", "default", "drop") is None
    assert second.store.version == version
    made = await second.create("configmaps", "default", {"metadata": {"name": "next"}})
    assert int(made["metadata"]["resourceVersion"]) > version
    with pytest.raises(ApiFailure, match="too old resource version") as caught:
        second.kinds.find("configmaps").table.events_after(version - 1)
    assert caught.value.status == 410
    journal.close()


def test_data_in_use_is_one_clear_error(tmp_path):
    journal = SQLiteJournal(tmp_path / "objects.sqlite")
    with pytest.raises(Terminal, match=r"cannot open the cluster.s data.*another --data-dir"):
        SQLiteJournal(tmp_path / "objects.sqlite")
    journal.close()


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path):
    (tmp_path / "objects.sqlite").write_bytes(b"this is something else entirely" * 100)
    with pytest.raises(Terminal, match="cannot open the cluster's data"):
        SQLiteJournal(tmp_path / "objects.sqlite")
