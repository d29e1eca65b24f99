"""The store on disk: whatever was done and wherever the process died, what comes back is what was answered."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubekit.errors import Terminal
from tinykube.apiserver import Registry
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.journal import SQLiteJournal
from tinykube.apiserver.store import ObjectStore

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
    store = ObjectStore()
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
    store = ObjectStore()
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


SERVER = """
import asyncio, sys
from pathlib import Path
from tinykube.apiserver import User
from tinykube.apiserver.server import ApiServer

async def main():
    server = await ApiServer.start(Path(sys.argv[1], "pki"), data=Path(sys.argv[1], "data"))
    server.extensions.identity.add("secret", User("admin", ("system:masters",)))
    print(server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_server_has_every_write_that_it_answered(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await asyncio.wait_for(process.stdout.readline(), 30))
    context = ssl.create_default_context(cafile=tmp_path / "pki" / "ca.crt")
    answered = []

    async def write(worker):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        for number in range(1000):
            name = f"m-{worker}-{number}"
            body = json.dumps({"metadata": {"name": name}, "data": {"n": "x" * 500}})
            head = (
                "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write((head + body).encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = int(answer.lower().partition("content-length: ")[2].split("\r\n")[0])
            await reader.readexactly(size)
            assert answer.startswith("HTTP/1.1 201")
            answered.append(name)
            if len(answered) == 150:
                process.kill()

    ends = await asyncio.gather(*(write(worker) for worker in range(4)), return_exceptions=True)
    await process.wait()
    assert all(isinstance(end, OSError | asyncio.IncompleteReadError) for end in ends)
    store, journal = reload(tmp_path / "data" / "objects.sqlite")
    found = {entry.name for entry in store.table("configmaps").items.values()}
    journal.close()
    assert found >= set(answered)
    assert len(found) <= len(answered) + 4  # at most the ones that were under way


def test_data_in_use_is_one_clear_error(tmp_path):
    journal = SQLiteJournal(tmp_path / "objects.sqlite")
    with pytest.raises(Terminal, match=r"cannot open the cluster.s data.*another --data-dir"):
        SQLiteJournal(tmp_path / "objects.sqlite")
    journal.close()


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path):
    (tmp_path / "objects.sqlite").write_bytes(b"this is something else entirely" * 100)
    with pytest.raises(Terminal, match="cannot open the cluster's data"):
        SQLiteJournal(tmp_path / "objects.sqlite")
