"""The suite's own images for the embedded cluster: directories with programs that were built from their Go module."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from gpulab.kubernetes import binaries
from tests.e2e.suite import SET

# Image -> programs in its directory -> those of the set. The rest is as in the Dockerfiles of test/images.
PROGRAMS: Final = {
    "agnhost": {"agnhost": "agnhost", "agnhost-2": "agnhost"},
    "nautilus": {"agnhost": "agnhost"},
    "nonewprivs": {"nnp": "nnp"},
}
CONFIGURATIONS: Final = {
    "agnhost": """
entrypoint = ["/agnhost"]
command = ["pause"]
directories = ["/uploads"]
own_address = true
files."/agnhost" = "bin/agnhost"
files."/agnhost-2" = "bin/agnhost-2"
files."/localhost.crt" = "files/localhost.crt"
""",
    "nautilus": """
entrypoint = ["/agnhost"]
command = ["test-webserver"]
own_address = true
files."/agnhost" = "bin/agnhost"
files."/data.json" = "files/data.json"
""",
    "nonewprivs": 'command = ["nnp"]\n',
}
# Files that specs ask servers for. Of the certificate they want that it is there.
FILES: Final = {
    "agnhost": {"localhost.crt": "a certificate in the image\n"},
    "nautilus": {"data.json": '{"image": "nautilus.jpg"}\n'},
    "nonewprivs": {},
}
_SETUID: Final = ("nnp",)


def make_images(folder: Path) -> dict[str, str]:
    """Make the images' directories in `folder` and return them: pattern of an image's name -> directory."""
    images = {}
    for image, programs in PROGRAMS.items():
        home = folder / image
        (home / "bin").mkdir(parents=True)
        for name, program in programs.items():
            place = home / "bin" / name
            shutil.copy(binaries.directory(SET) / program, place)
            place.chmod(0o4755 if name in _SETUID else 0o755)
        (home / "files").mkdir()
        for name, text in FILES[image].items():
            (home / "files" / name).write_text(text)
        (home / "image.toml").write_text(CONFIGURATIONS[image])
        images[f"registry.k8s.io/e2e-test-images/{image}:*"] = str(home)
    return images
