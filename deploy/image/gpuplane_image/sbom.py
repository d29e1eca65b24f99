"""The bill of materials of an image, as CycloneDX 1.6, read from the archive that was written.

Debian packages are those of `/var/lib/dpkg/status.d`, Python packages those of `.dist-info`, as scanners find them too.
Go programs are NVIDIA's; their modules are in `toolkit/go.mod`, which pins what is linked.

The same image gives the same bytes: no time, no random number.
"""

from __future__ import annotations

import email.parser
import json
import re
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .images import ImageInfo

GO_MOD = Path(__file__).parents[1] / "toolkit" / "go.mod"
GO_PROGRAM = "nvidia-ctk"
DISTRIBUTION = "debian"
_STATUS = "var/lib/dpkg/status.d/"
_REQUIRED = re.compile(r"^\s+(\S+) (v\S+)(?: // indirect)?$", re.MULTILINE)
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, RFC 9562
Component = dict[str, Any]


def write_sbom(info: ImageInfo) -> Path:
    """Write the bill of materials next to the archive; its path."""
    output = info.path.with_name(info.path.name.removesuffix(".tar").removesuffix(".oci") + ".cdx.json")
    output.write_text(json.dumps(bill_of_materials(info), indent=2) + "\n")
    return output


def bill_of_materials(info: ImageInfo) -> dict[str, Any]:
    """Return the document."""
    name, _, version = info.tag.rpartition(":")
    short = name.rpartition("/")[2]
    image = {
        "type": "container",
        "bom-ref": "image",
        "name": name,
        "version": version,
        "purl": f"pkg:oci/{short}@{quote(info.digest, safe='')}?repository_url={quote(name, safe='')}",
        "hashes": [{"alg": "SHA-256", "content": info.digest.removeprefix("sha256:")}],
    }
    found = {component["purl"]: component for component in _components(info.path)}
    components = [{"bom-ref": purl, **found[purl]} for purl in sorted(found)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, info.digest)}",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _components(path: Path) -> Iterator[Component]:
    with tarfile.open(path) as archive:
        for name in json.loads(_content(archive, "manifest.json"))[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                for member in layer:
                    yield from _of_file(layer, member)


def _of_file(layer: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[Component]:
    file = member.name.removeprefix("./")
    if not member.isfile():
        return
    if file.startswith(_STATUS) and not file.endswith(".md5sums"):
        yield _debian(_content(layer, member.name).decode())
    elif file.endswith(".dist-info/METADATA"):
        yield _python(_content(layer, member.name).decode())
    elif file.rpartition("/")[2] == GO_PROGRAM:
        yield from (_go(*found) for found in _REQUIRED.findall(GO_MOD.read_text()))


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


def _debian(status: str) -> Component:
    fields = email.parser.HeaderParser().parsestr(status)
    name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
    purl = f"pkg:deb/{DISTRIBUTION}/{name}@{quote(version, safe='')}?arch={machine}"
    return {"type": "library", "name": name, "version": version, "purl": purl}


def _python(metadata: str) -> Component:
    fields = email.parser.HeaderParser().parsestr(metadata)
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    component = {"type": "library", "name": name, "version": fields["Version"]}
    if fields["License-Expression"]:
        component["licenses"] = [{"expression": fields["License-Expression"]}]
    return {**component, "purl": f"pkg:pypi/{name}@{quote(fields['Version'], safe='')}"}


def _go(module: str, version: str) -> Component:
    return {"type": "library", "name": module, "version": version, "purl": f"pkg:golang/{module}@{version}"}
