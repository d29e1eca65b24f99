"""The bill of materials of an image, as CycloneDX 1.6, read from the archive that was written.

Debian packages are those of `/var/lib/dpkg/status.d`, with the digest of the package that was unpacked. Python packages
are those of `.dist-info`, with the files that their RECORD lists, and their bytecode. Modules of Go are those that
the linker has written into a program. Each file of the image is listed once, with its digest: below its Python package,
or by itself.

The same image gives the same bytes: no time, no random number.
"""

from __future__ import annotations

import csv
import email.parser
import hashlib
import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .debian import package_url
from .images import ImageInfo

_STATUS = "var/lib/dpkg/status.d/"
_RECORD, _METADATA = ".dist-info/RECORD", ".dist-info/METADATA"
_GO_PROGRAM = b"\xff Go buildinf:"
# Source: runtime/debug.BuildInfo.String.
_GO_MODULE = re.compile(rb"\n(?:mod|dep)\t([^\t\n]+)\t(v[^\t\n]+)\t(h1:[\w+/=]+)")
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
    digests, contents = _read(info.path)
    debs = {name: digest for layer in info.layers for name, digest in layer.inputs.items()}
    found = {component["purl"]: component for component in _packages(contents, debs)}
    loose = dict(digests)
    for record in [path for path in contents if path.endswith(_RECORD)]:
        owner = _python(contents[record.removesuffix(_RECORD) + _METADATA].decode())["purl"]
        owned = sorted(_recorded(record, contents[record].decode(), loose))
        found[owner]["components"] = [_file(path, loose.pop(path)) for path in owned]
    components = [{"bom-ref": purl, **found[purl]} for purl in sorted(found)]
    components += [_file(path, loose[path]) for path in sorted(loose)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, info.digest)}",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": sorted(found)}],
    }


def _read(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the SHA-256 of each file of the image, and the contents of those that name packages, Go programs too."""
    digests, contents = {}, {}
    with tarfile.open(path) as archive:
        for name in json.loads(_content(archive, "manifest.json"))[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                for member in filter(tarfile.TarInfo.isfile, layer):
                    file, data = member.name.removeprefix("./"), _content(layer, member.name)
                    digests[file] = hashlib.sha256(data).hexdigest()
                    if file.startswith(_STATUS) or file.endswith((_RECORD, _METADATA)) or _GO_PROGRAM in data:
                        contents[file] = data
    return digests, contents


def _packages(contents: Mapping[str, bytes], debs: Mapping[str, str]) -> Iterator[Component]:
    for file, data in contents.items():
        if file.startswith(_STATUS) and not file.endswith(".md5sums"):
            yield _debian(data.decode(), debs)
        elif file.endswith(_METADATA):
            yield _python(data.decode())
        elif _GO_PROGRAM in data:
            yield from (_go(*(part.decode() for part in found)) for found in _GO_MODULE.findall(data))


def _recorded(record: str, text: str, files: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of the image that are a distribution's: those of its RECORD, and their bytecode."""
    base = record.removesuffix(_RECORD).rpartition("/")[0]
    listed = {f"{base}/{row[0]}" for row in csv.reader(text.splitlines()) if row}
    for file in files:
        folder, _, name = file.rpartition("/__pycache__/")
        if file in listed or (name and f"{folder}/{name.partition('.')[0]}.py" in listed):
            yield file


def _file(path: str, digest: str) -> Component:
    hashes = [{"alg": "SHA-256", "content": digest}]
    return {"type": "file", "bom-ref": f"file:/{path}", "name": f"/{path}", "hashes": hashes}


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


def _debian(status: str, debs: Mapping[str, str]) -> Component:
    fields = email.parser.HeaderParser().parsestr(status)
    name, version = fields["Package"], fields["Version"]
    purl = package_url(name, version, fields["Architecture"])
    component = {"type": "library", "name": name, "version": version, "purl": purl}
    if purl in debs:
        component["hashes"] = [{"alg": "SHA-256", "content": debs[purl]}]
    return component


def _python(metadata: str) -> Component:
    fields = email.parser.HeaderParser().parsestr(metadata)
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    component = {"type": "library", "name": name, "version": fields["Version"]}
    if fields["License-Expression"]:
        component["licenses"] = [{"expression": fields["License-Expression"]}]
    return {**component, "purl": f"pkg:pypi/{name}@{quote(fields['Version'], safe='')}"}


def _go(module: str, version: str, checksum: str) -> Component:
    """`checksum` is that of go.sum, of the module's files."""
    component = {"type": "library", "name": module, "version": version, "purl": f"pkg:golang/{module}@{version}"}
    return {**component, "properties": [{"name": "go:sum", "value": checksum}]}
