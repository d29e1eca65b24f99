"""Makes gpuplane's image here: no Docker, no daemon, no container registry.

    python deploy/image/build.py [--tag gpuplane/gpuplane:VERSION] [--output FILE] [-o json]

What it writes is an OCI layout in a tar, for `ctr -n k8s.io images import`, `docker load`, `podman load` and
`skopeo copy oci-archive:FILE docker://...`. The same inputs give the same digest. Next to it is the bill of materials,
FILE.cdx.json, in CycloneDX.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpuplane_image import ImageError, ImageInfo, build, write_sbom
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
        materials = write_sbom(info)
    except ImageError as error:
        sys.exit(f"build.py: {error}")
    sys.stdout.write(as_json(info, materials) if options.format == "json" else as_text(info, materials))


def as_text(info: ImageInfo, materials: Path) -> str:
    return f"{info.tag}  {info.digest}  {info.size_bytes / 1e6:.1f} MB\n{info.path}\n{materials}\n"


def as_json(info: ImageInfo, materials: Path) -> str:
    """Sizes in bytes, uncompressed; `parts` by Debian package and Python distribution, largest first."""
    layers = [layer._asdict() for layer in info.layers]
    return (
        json.dumps(info._asdict() | {"path": str(info.path), "materials": str(materials), "layers": layers}, indent=2)
        + "\n"
    )


if __name__ == "__main__":
    main()
