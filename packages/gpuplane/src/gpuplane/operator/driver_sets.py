"""The DaemonSet of one driver group: our own installer, or one of NVIDIA's driver images under its own entry point.

Both report the same way: gpuplane's operand installs, or runs next to the image's container and watches. The fields of
a ClusterPolicy or NVIDIADriver that decide about the installed driver go into arguments and environment of the first
container, so that an upgrade can tell one driver from another by them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from gpuplane import names
from gpuplane.api.components import ProbeTiming
from gpuplane.operator.drivers import DriverChoice, DriverGroup, image_of
from gpuplane.operator.manifest import Manifest, add_part, set_env
from kubekit.api.meta import to_dict

GROUP_LABEL: Final = "gpuplane.dev/driver-group"
DRIVER_IMAGE_CONTAINER: Final = "nvidia-driver-ctr"
"""The container of a driver image; every other container of an operand has the operator's own image."""
_OWN_PARTS: Final = "0201-driver-parts.yaml"
_IMAGE_PARTS: Final = "0211-driver-image-parts.yaml"
Keys = Mapping[str, tuple[str, ...]]
"""The keys of ConfigMaps in the operator's namespace, by name: NVIDIA's images have additional files of their own."""

_REPOSITORIES: Final = {
    "ubuntu": "/etc/apt/sources.list.d",
    "debian": "/etc/apt/sources.list.d",
    "sles": "/etc/zypp/repos.d",
}
_CERTIFICATES: Final = {
    "ubuntu": "/usr/local/share/ca-certificates",
    "debian": "/usr/local/share/ca-certificates",
    "sles": "/etc/pki/trust/anchors",
}


def for_group(own: Manifest, theirs: Manifest, group: DriverGroup, choice: DriverChoice, keys: Keys) -> Manifest:
    """The DaemonSet of a group, made from the YAML of the one kind or the other, which is changed in place."""
    manifest = own if choice.own_image else theirs
    name = f"{manifest['metadata']['name']}-{group.name}"
    spec = manifest["spec"]
    template = spec["template"]
    pod = template["spec"]
    manifest["metadata"]["name"] = name
    for labels in (manifest["metadata"]["labels"], spec["selector"]["matchLabels"], template["metadata"]["labels"]):
        labels[GROUP_LABEL] = group.name
    pod["nodeSelector"] |= _selector(group)
    main = pod["containers"][0]
    if choice.own_image:
        _own(pod, main, choice)
    else:
        main["image"] = image_of(choice, group)
        _theirs(pod, main, group, choice, keys)
    _pod(template, pod, choice)
    for variable in choice.env:
        set_env(main, variable.name, variable.value)
    if choice.secret_env:
        main["envFrom"] = [{"secretRef": {"name": choice.secret_env}}]
    if choice.resources is not None:
        main["resources"] = to_dict(choice.resources)
    if choice.source.image_pull_policy:
        main["imagePullPolicy"] = choice.source.image_pull_policy
    return manifest


def _selector(group: DriverGroup) -> dict[str, str]:
    wanted = {names.OS_ID_LABEL: group.os}
    minor = "." in group.version or not group.version.isdigit()
    wanted[names.OS_VERSION_LABEL if minor or group.kernel else names.OS_MAJOR_LABEL] = group.version
    if group.kernel:
        wanted[names.KERNEL_VERSION_LABEL] = group.kernel
    if group.owner:
        wanted[names.DRIVER_OWNER_LABEL] = group.owner
    return wanted


def _pod(template: Manifest, pod: Manifest, choice: DriverChoice) -> None:
    template["metadata"]["labels"] = {**choice.labels, **template["metadata"]["labels"]}
    if choice.annotations:
        template["metadata"]["annotations"] = dict(choice.annotations)
    pod["tolerations"] = [to_dict(toleration) for toleration in choice.tolerations]
    if choice.priority_class:
        pod["priorityClassName"] = choice.priority_class
    if choice.affinity:
        pod["affinity"] = {"nodeAffinity": dict(choice.affinity)}
    if choice.security_context:
        # It replaces the policy's, and goes on with the filter of system calls that every pod has.
        filtered = {name: value for name, value in pod["securityContext"].items() if name == "seccompProfile"}
        pod["securityContext"] = filtered | dict(choice.security_context)
    if choice.host_network is not None:
        pod["hostNetwork"] = choice.host_network
    if choice.source.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in choice.source.image_pull_secrets]


def _own(pod: Manifest, main: Manifest, choice: DriverChoice) -> None:
    if not choice.enabled:
        set_env(main, names.DRIVER_INSTALL_ENV, "false")
    # The version of a driver image may be a digest or a branch.
    if choice.source.version and not (choice.source.repository or choice.source.image):
        set_env(main, names.DRIVER_VERSION_ENV, choice.source.version)
    else:
        set_env(main, names.DRIVER_DEFAULT_ENV, names.RECOMMENDED_DRIVER)
    if choice.modules != "auto":
        set_env(main, names.DRIVER_MODULES_ENV, choice.modules)
    if choice.precompiled:
        set_env(main, names.DRIVER_PRECOMPILED_ENV, "true")
    if choice.rdma is not None and choice.rdma.enabled:
        set_env(main, names.DRIVER_RDMA_ENV, "true")
    for part, config in _configs(choice):
        if config:
            add_part(pod, main, _OWN_PARTS, part, source=config)


def _theirs(pod: Manifest, main: Manifest, group: DriverGroup, choice: DriverChoice, keys: Keys) -> None:
    """Add the settings of NVIDIA's images: environment, files by name, the start-up probe."""
    main["args"] = ["init", *choice.args]
    set_env(main, names.DRIVER_MODULES_ENV, choice.modules)
    if choice.modules == "open":
        set_env(main, "OPEN_KERNEL_MODULES_ENABLED", "true")  # older images know no other
    add = functools.partial(add_part, pod, main, _IMAGE_PARTS)
    if choice.rdma is not None and choice.rdma.enabled:
        add("network-driver-on-host" if choice.rdma.use_host_mofed else "network-driver")
    if choice.startup_probe is not None:
        main["startupProbe"] |= _timing(choice.startup_probe)
    directories = {"repositories": _REPOSITORIES.get(group.os, ""), "certificates": _CERTIFICATES.get(group.os, "")}
    for part, config in _configs(choice):
        # An image for one kernel installs no packages.
        if config and not (choice.precompiled and part in directories):
            add(part, source=config, keys=keys.get(config, ()), directory=directories.get(part, ""))
    if choice.topology_config:
        add("topology", source=choice.topology_config)
    if choice.license_secret or choice.license_config:
        add(
            "licensing-secret" if choice.license_secret else "licensing-config",
            source=choice.license_secret or choice.license_config,
        )
        add("licensing-file")
        if choice.license_token:
            add("licensing-token")


def _configs(choice: DriverChoice) -> tuple[tuple[str, str], ...]:
    """(part, ConfigMap) of the files that both kinds of driver pods get; the ConfigMap is empty for no files."""
    return (
        ("kernel-modules", choice.module_config),
        ("repositories", choice.repo_config),
        ("certificates", choice.cert_config),
    )


def config_maps(choice: DriverChoice) -> tuple[str, ...]:
    """The ConfigMaps whose keys have to be known."""
    return () if choice.own_image else tuple(config for _, config in _configs(choice) if config)


def _timing(probe: ProbeTiming) -> dict[str, int]:
    timing: dict[str, int] = to_dict(probe)
    return timing
