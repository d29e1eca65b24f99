"""Makes gpuplane's image here: no Docker, no daemon, no container registry.

    python deploy/image/build.py [--tag gpuplane/gpuplane:VERSION] [--output FILE] [-o json]

What it writes is an OCI layout in a tar, for `ctr -n k8s.io images import`, `docker load`, `podman load` and
`skopeo copy oci-archive:FILE docker://...`. The same inputs give the same digest. Next to it is the bill of materials,
FILE.cdx.json, in CycloneDX, and the provenance, FILE.provenance.json, an in-toto statement in SLSA's form.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpuplane_image import ImageError, ImageInfo, build, epoch, write_provenance, write_sbom
from gpuplane_image.dependencies import REPOSITORY, project


def main() -> None:
    version = project()["version"]
    parser = argparse.ArgumentParser(description="Build gpuplane's image as an archive.")
    parser.add_argument("--tag", default=f"gpuplane/gpuplane:{version}", help="its name (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist" / f"gpuplane-{version}.oci.tar", help="FILE")
    parser.add_argument("--cache", type=Path, help="folder (default: ${XDG_CACHE_HOME:-~/.cache}/gpuplane/image)")
    parser.add_argument("-o", dest="format", choices=["text", "json"], default="text", help="how the result is written")
    options = parser.parse_args()
    try:
        info = build(options.output, options.tag, cache=options.cache)
        beside = (write_sbom(info), write_provenance(info, epoch()))
    except ImageError as error:
        sys.exit(f"build.py: {error}")
    sys.stdout.write(as_json(info, *beside) if options.format == "json" else as_text(info, *beside))


def as_text(info: ImageInfo, materials: Path, provenance: Path) -> str:
    return f"{info.tag}  {info.digest}  {info.size_bytes / 1e6:.1f} MB\n{info.path}\n{materials}\n{provenance}\n"


def as_json(info: ImageInfo, materials: Path, provenance: Path) -> str:
    """Sizes in bytes, uncompressed; `parts` by Debian package and Python distribution, largest first."""
    layers = [layer._asdict() for layer in info.layers]
    paths = {"path": str(info.path), "materials": str(materials), "provenance": str(provenance)}
    return json.dumps(info._asdict() | paths | {"layers": layers}, indent=2) + "\n"


if __name__ == "__main__":
    main()
