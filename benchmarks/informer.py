"""50,000 pods listed and watched: time and memory of an informer, and what following changes costs.

    python benchmarks/informer.py [PODS]

The server is a process of its own with pods of 4 KB in pages of 500, so the figures are the client's alone. Goal: under
400 MB. Peers (measured on the same kind of machine, listed and kept, see the reference of the stack): lightkube with
narrow Structs 1.9 CPU-s, 236 MB; aiohttp with orjson dicts 7.1 s, 1,076 MB; kopf 9.1 s; kubernetes 49 s, 3.1 GB;
kr8s 71 s, 5.2 GB; cloudcoil 29 s.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

CHANGES = 20_000


def pod(index: int, version: int, phase: str = "Running") -> bytes:
    """Return a pod of about 4 KB, as API servers send them: clients read only a small part of it."""
    name = f"train-{index:05d}"
    fields = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:part{i}": {".": {}} for i in range(60)}}]
    volumes = [
        {"name": f"v{i}", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}} for i in range(8)
    ]
    return json.dumps(
        {
            "metadata": {
                "name": name,
                "namespace": f"team-{index % 50}",
                "uid": f"00000000-0000-0000-0000-{index:012d}",
                "resourceVersion": str(version),
                "creationTimestamp": "2026-11-01T00:00:00Z",
                "labels": {"app": "train", "team": f"team-{index % 50}", "job-name": f"job-{index // 8}"},
                "annotations": {"note": "x" * 200},
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{index // 8}", "uid": f"j-{index // 8}"}
                ],
                "managedFields": fields,
            },
            "spec": {
                "nodeName": f"node-{index % 1000}",
                "containers": [
                    {
                        "name": "main",
                        "image": "registry.example/train:1.2.3",
                        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "32Gi"}},
                        "volumeMounts": [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(8)],
                    }
                ],
                "volumes": volumes,
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            },
            "status": {
                "phase": phase,
                "podIP": "10.0.0.1",
                "conditions": [{"type": t, "status": "True"} for t in ("Ready", "Initialized", "PodScheduled")],
                "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
            },
        }
    ).encode()


def serve(count: int, out: Connection) -> None:
    pods = [pod(i, i + 1) for i in range(count)]
    out.send(sum(map(len, pods)) // count)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            params = {k: v[0] for k, v in parse_qs(urlsplit(head.split(b" ", 2)[1].decode()).query).items()}
            if "watch" in params:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for i in range(CHANGES):
                    changed = pod(i % count, count + i + 1, "Succeeded")
                    line = b'{"type":"MODIFIED","object":' + changed + b"}\n"
                    writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                    await writer.drain()
                await asyncio.Event().wait()
            start = int(params.get("continue", "0"))
            end = min(start + int(params["limit"]), count)
            more = f',"continue":"{end}"' if end < count else ""
            meta = f'{{"metadata":{{"resourceVersion":"{count}"{more}}},"items":['.encode()
            body = meta + b",".join(pods[start:end]) + b"]}"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(one, "127.0.0.1", 0)
        out.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def run(port: int, count: int) -> None:
    from kubekit.api.core import Pod
    from kubekit.kube import ApiEndpoint, Client, Informer
    from kubekit.kube.auth import StaticAuth

    base, started, spent = rss_mb(), time.perf_counter(), cpu()
    client = Client(ApiEndpoint(host="127.0.0.1", port=port, auth=StaticAuth()))
    informer = Informer(client, Pod)
    informer.add_index("node", lambda pod: (pod.spec.node_name,))
    caught_up = asyncio.Event()

    def seen(old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.metadata.resource_version == str(count + CHANGES):
            caught_up.set()

    informer.add_handler(seen)
    informer.start()
    await informer.synced()
    print(
        f"listed  {len(informer):6d} pods   {time.perf_counter() - started:5.2f} s   {cpu() - spent:5.2f} CPU-s", end=""
    )
    print(f"   RSS {rss_mb():4.0f} MB (before: {base:.0f})")
    started, spent = time.perf_counter(), cpu()
    await caught_up.wait()
    each = 1e6 * (cpu() - spent) / CHANGES
    print(f"watched {CHANGES:6d} changes {time.perf_counter() - started:5.2f} s   {cpu() - spent:5.2f} CPU-s", end="")
    print(f"   RSS {rss_mb():4.0f} MB   {each:.0f} us a change")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"peak RSS {peak:.0f} MB, goal 400: {'met' if peak < 400 else 'MISSED'}")
    await informer.stop()
    await client.aclose()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(count, there), daemon=True)
    server.start()
    print(f"pods of {here.recv()} bytes")
    asyncio.run(run(here.recv(), count))
    server.terminate()


if __name__ == "__main__":
    main()
