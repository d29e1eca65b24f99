"""The exporter as Prometheus and the kubelet's probe see it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gpuplane.exporter import run
from kubekit.errors import InvalidInput, Retryable, Terminal
from packages.gpuplane.tests.exporter.exporting import (
    FakePods,
    context,
    exporting,
    free_port,
    get,
    one_gpu,
    pod_resources,
)
from tests.support.fake_gpus import FakeGPUs


async def test_metrics_are_read_when_they_are_asked_for() -> None:
    gpus = one_gpu()
    opened = 0

    def open_gpus() -> FakeGPUs:
        nonlocal opened
        opened += 1
        return gpus

    async with exporting(context(open_gpus)) as ask:
        assert await ask("/health") == (200, "OK\n")
        assert (opened, gpus.readings) == (1, 0)
        for number in (1, 2):
            status, text = await ask("/metrics")
            assert status == 200
            assert f'Hostname="sim-1",DCGM_FI_DRIVER_VERSION="570.1"}} {number}\n' in text
    assert gpus.closed == 1


async def test_no_driver_is_503_with_the_reason_and_heals() -> None:
    gpus = one_gpu()
    away = [Retryable("no libnvidia-ml.so.1 found", where="/", cure="install the driver")]

    def open_gpus() -> FakeGPUs:
        if away:
            raise away[0]
        return gpus

    async with exporting(context(open_gpus)) as ask:
        for path in ("/health", "/metrics"):
            assert await ask(path) == (503, "/: no libnvidia-ml.so.1 found; install the driver\n")
        away.clear()
        assert (await ask("/metrics"))[0] == 200
        gpus.error = Retryable("the driver is going away")
        assert (await ask("/metrics"))[0] == 503
        assert gpus.closed == 1
        gpus.error = None
        assert (await ask("/metrics"))[0] == 200


async def test_what_only_a_new_process_heals_ends_this_one() -> None:
    def open_gpus() -> FakeGPUs:
        raise Terminal("NVML is of another version than the driver")

    with pytest.raises(Terminal, match="another version"):
        await run(context(open_gpus))


async def test_a_container_ends_when_the_specification_of_its_devices_changes(tmp_path: Path) -> None:
    path, new = tmp_path / "management.nvidia.com-gpu.json", tmp_path / "new"
    path.write_text('{"devices": 1}')
    given = context(one_gpu, cdi_specification=path)
    async with exporting(given) as ask:
        assert (await ask("/health"))[0] == 200
        new.write_text('{"devices": 1}')
        new.rename(path)  # the toolkit writes the same again
        assert (await ask("/health"))[0] == 200
        path.unlink()  # a toolkit that leaves takes no device from a container
        assert (await ask("/health"))[0] == 200
        new.write_text('{"devices": 2}')
        new.rename(path)
        with pytest.raises(Terminal, match="devices of the node changed"):
            await ask.ended()


async def test_a_container_that_was_created_before_its_specification_ends_when_there_is_one(tmp_path: Path) -> None:
    """As after a reboot: /run is empty, and the kubelet starts the pods that were there."""
    path = tmp_path / "management.nvidia.com-gpu.json"

    def no_driver() -> FakeGPUs:
        raise Retryable("no driver")

    async with exporting(context(no_driver, cdi_specification=path)) as ask:
        assert (await ask("/health"))[0] == 503
        path.write_text('{"devices": 1}')
        with pytest.raises(Terminal, match="devices of the node changed"):
            await ask.ended()


async def test_other_paths_and_methods() -> None:
    async with exporting(context(one_gpu)) as ask:
        assert (await ask("/absent"))[0] == 404
        assert await ask("/-/ready") == (200, "OK\n")
        status, text = await ask("/")
        assert (status, 'href="metrics"' in text) == (200, True)
        assert (await ask("/metrics", "POST"))[0] == 405
        assert await ask("/health", "HEAD") == (200, "")
        assert (await ask("/metrics?x=1"))[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(request_bytes: bytes, status: bytes) -> None:
    given = context(one_gpu)
    async with exporting(given) as ask:
        await ask("/health")
        reader, writer = await asyncio.open_connection("127.0.0.1", given.port)
        writer.write(request_bytes)
        assert (await reader.read()).split()[1] == status
        writer.close()


async def test_a_connection_serves_many_scrapes_and_a_body_ends_it() -> None:
    given = context(one_gpu)
    async with exporting(given) as ask:
        await ask("/health")
        reader, writer = await asyncio.open_connection("127.0.0.1", given.port)
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(3) == b"OK\n"
        writer.write(b"GET /health HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).count(b"HTTP/1.1") == 1
        writer.close()


async def test_a_port_in_use_is_said_and_taken_when_it_is_free(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        given = context(one_gpu, port=other.getsockname()[1])
        said = asyncio.Event()

        async def sleep(_: float) -> None:
            said.set()
            await asyncio.sleep(0.01)

        given = context(one_gpu, port=given.port, sleep=sleep)
        task = asyncio.create_task(run(given))
        await said.wait()
        assert f"cannot listen on port {given.port}" in caplog.text
    while True:
        try:
            assert given.port is not None
            assert await asyncio.to_thread(get, given.port, "/health") == (200, "OK\n")
            break
        except ConnectionError:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.text.count("cannot listen") == 1


async def test_a_wrong_list_of_fields_stops_it(tmp_path: Path) -> None:
    (tmp_path / "fields.csv").write_text("nonsense")
    with pytest.raises(InvalidInput, match="line 1"):
        await run(context(one_gpu, config=tmp_path / "fields.csv"))


async def test_a_list_of_fields_that_changes_is_taken_over_and_a_wrong_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As a kubelet mounts a ConfigMap: the file is a link through `..data`, which is replaced whole.
    def put(version: int, text: str) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "fields.csv").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    put(1, "DCGM_FI_DEV_SM_CLOCK, gauge, One.")
    (tmp_path / "fields.csv").symlink_to("..data/fields.csv")
    async with exporting(context(one_gpu, config=tmp_path / "fields.csv")) as ask:
        assert "# HELP DCGM_FI_DEV_SM_CLOCK One." in (await ask("/metrics"))[1]
        put(2, "nonsense")
        while "the previous list stays" not in caplog.text:
            await ask("/health")
        assert f"{tmp_path}/fields.csv:1" in caplog.text
        assert "# HELP DCGM_FI_DEV_SM_CLOCK One." in (await ask("/metrics"))[1]
        put(3, "DCGM_FI_DEV_SM_CLOCK, gauge, Three.")
        while "Three" not in (await ask("/metrics"))[1]:
            pass


async def test_the_environment_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("17\n")
    given = context(one_gpu, host_root=tmp_path, kubelet_dir=tmp_path, port=None)
    port = free_port()
    for name, value in (
        ("DCGM_EXPORTER_LISTEN", f":{port}"),
        ("DCGM_EXPORTER_KUBERNETES", "false"),
        ("DCGM_EXPORTER_NO_HOSTNAME", "true"),
        ("DCGM_HPC_JOB_MAPPING_DIR", "/jobs"),
    ):
        monkeypatch.setenv(name, value)
    async with pod_resources(tmp_path, FakePods()), exporting(given) as ask:
        text = (await ask("/metrics", port=port))[1]
        assert 'hpc_job="17"' in text
        assert "pod=" not in text
        assert "Hostname" not in text
