"""The kernel-update hook: a new kernel's modules are made while the old one still runs.

So its first boot is quick, and what is missing for it is known before. Distributions call every program in a directory
of theirs after they have installed a kernel. The hook only writes down which; the operand sees that and does the work,
and while no operand runs nothing happens.

SUSE's kernels call no hook, and a kernel may have been installed before the hook. So the link that the next boot
follows is read as well: SUSE, Debian and Ubuntu set it with each kernel.
"""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.host import Host, ManagedFile

# Debian and Ubuntu (run-parts: no dot in the name), and kernel-install(8) of the RHEL family and SUSE.
_POSTINST: Final = "etc/kernel/postinst.d"
_INSTALL: Final = "etc/kernel/install.d"
_HEAD: Final = "#!/bin/sh\n# Written by gpuplane: tells its driver operand of a new kernel.\n"
_TELL: Final = f'mkdir -p /{names.NEW_KERNEL.rpartition("/")[0]} && printf "%s\\n" "$1" > /{names.NEW_KERNEL}\nexit 0\n'
BOOT_LINKS: Final = ("boot/vmlinuz", "boot/Image", "vmlinuz")  # the second is that of arm64, the third Debian's
POSTINST_HOOK: Final = f"{_POSTINST}/zz-gpuplane-driver"
INSTALL_HOOK: Final = f"{_INSTALL}/95-gpuplane-driver.install"


def hook_files(host: Host) -> tuple[ManagedFile, ...]:
    """The hooks for those of the directories that the host has."""
    hooks = []
    if host.exists(_POSTINST):
        hooks.append(ManagedFile(path=POSTINST_HOOK, data=(_HEAD + _TELL).encode(), mode=0o755))
    if host.exists(_INSTALL):
        added = '[ "$1" = add ] || exit 0\nshift\n'
        hooks.append(ManagedFile(path=INSTALL_HOOK, data=(_HEAD + added + _TELL).encode(), mode=0o755))
    return tuple(hooks)


def new_kernel(host: Host) -> str:
    """The release of the kernel that the next boot will likely take, "" where nothing tells.

    The hook's word counts first, for it is of the last kernel that was installed since the boot.
    """
    told = host.read_text(names.NEW_KERNEL)
    if told:
        return told
    for link in BOOT_LINKS:
        _, dash, release = (host.readlink(link) or "").rpartition("/")[2].partition("-")
        # A kernel that is being installed has no list of its modules yet, a removed one has none any more.
        if dash and host.exists(f"lib/modules/{release}/modules.dep"):
            return release
    return ""
