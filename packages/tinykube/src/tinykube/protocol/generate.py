"""Generates the Python stubs of kubelets' and container runtimes' protocols from `kubekit.protocol`'s .proto files.

Messages belong to kubekit, the stubs of gRPC services lie here. The generated files are committed, so that an
installation needs no protoc; a test generates them again and compares. Invariant: `generate` depends on the .proto
files and the pinned grpcio-tools only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kubekit.protocol
import tinykube.protocol

MESSAGES = Path(str(kubekit.protocol.__file__)).parent
SERVICES = Path(str(tinykube.protocol.__file__)).parent
PROTOCOLS = ("deviceplugin", "dra", "drahealth", "nri", "pluginregistration", "podresources", "ttrpc")
SERVED_BY_GRPC = ("deviceplugin", "podresources")


def place(name: str) -> Path:
    """Return the path of a generated file of this name."""
    return (SERVICES if name.endswith("_grpc.py") else MESSAGES) / name


def generate(target: Path) -> list[Path]:
    """Write messages, their types and the service stubs of every protocol below `target`; returns the files.

    Needs grpcio-tools (development only). Raises RuntimeError when a .proto file does not compile.
    """
    from grpc_tools import protoc

    for name in PROTOCOLS:
        arguments = [
            "protoc",
            f"--proto_path=kubekit/protocol={MESSAGES}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            *([f"--grpc_python_out={target}"] if name in SERVED_BY_GRPC else []),
            f"kubekit/protocol/{name}.proto",
        ]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"{MESSAGES / name}.proto does not compile")
    return sorted((target / "kubekit/protocol").glob("*_pb2*"))


def main() -> int:
    """Regenerate in place."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        for path in generate(Path(directory)):
            place(path.name).write_bytes(path.read_bytes())
            sys.stdout.write(f"{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
