"""The DaemonSet of one driver group: our own installer, or one of NVIDIA's driver images under its own entry point.

Both report the same way: gpuplane's operand installs, or runs next to the image's container and watches. What of a
ClusterPolicy or NVIDIADriver decides about the installed driver goes into arguments and environment of the first
container, so that an upgrade can tell one driver from another by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.api.components import Probe
from gpuplane.operator.drivers import DriverChoice, DriverGroup, image_of
from kubekit.api.meta import to_dict

GROUP_LABEL: Final = "gpuplane.dev/driver-group"
Manifest = dict[str, Any]
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
_GRIDD, _TOKEN = "gridd.conf", "client_configuration_token.tok"
_TOPOLOGY: Final = "nvidia-topologyd.conf"


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
    pod["tolerations"] += [to_dict(toleration) for toleration in choice.tolerations]
    if choice.priority_class:
        pod["priorityClassName"] = choice.priority_class
    if choice.affinity:
        pod["affinity"] = {"nodeAffinity": dict(choice.affinity)}
    if choice.security_context:
        pod["securityContext"] = dict(choice.security_context)
    if choice.host_network is not None:
        pod["hostNetwork"] = choice.host_network
    if choice.source.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in choice.source.image_pull_secrets]


def _own(pod: Manifest, main: Manifest, choice: DriverChoice) -> None:
    if not choice.enabled:
        set_env(main, names.DRIVER_INSTALL_ENV, "false")
    if choice.source.version:
        set_env(main, names.DRIVER_VERSION_ENV, choice.source.version)
    if choice.modules != "auto":
        set_env(main, names.DRIVER_MODULES_ENV, choice.modules)
    if choice.precompiled:
        set_env(main, names.DRIVER_PRECOMPILED_ENV, "true")
    if choice.rdma is not None and choice.rdma.enabled:
        set_env(main, names.DRIVER_RDMA_ENV, "true")
    for config, directory in (
        (choice.module_config, names.DRIVER_MODULES_DIR),
        (choice.repo_config, names.DRIVER_REPOSITORIES_DIR),
        (choice.cert_config, names.DRIVER_CERTIFICATES_DIR),
    ):
        if config:
            pod["volumes"].append({"name": directory.rpartition("/")[2], "configMap": {"name": config}})
            mount = {"name": directory.rpartition("/")[2], "mountPath": directory, "readOnly": True}
            main["volumeMounts"].append(mount)


def _theirs(pod: Manifest, main: Manifest, group: DriverGroup, choice: DriverChoice, keys: Keys) -> None:
    """Add the settings of NVIDIA's images: environment, files by name, the start-up probe."""
    main["args"] = ["init", *choice.args]
    set_env(main, names.DRIVER_MODULES_ENV, choice.modules)
    if choice.modules == "open":
        set_env(main, "OPEN_KERNEL_MODULES_ENABLED", "true")  # older images know no other
    if choice.rdma is not None and choice.rdma.enabled:
        set_env(main, names.DRIVER_RDMA_ENV, "true")
        _network_driver(pod, main, on_host=choice.rdma.use_host_mofed)
        if choice.rdma.use_host_mofed:
            set_env(main, "USE_HOST_MOFED", "true")
    if choice.startup_probe is not None:
        main["startupProbe"] |= _timing(choice.startup_probe)
    _files(pod, main, "kernel-modules", choice.module_config, "/drivers", keys)
    if not choice.precompiled:
        repositories = _REPOSITORIES.get(group.os, "/etc/yum.repos.d")
        certificates = _CERTIFICATES.get(group.os, "/etc/pki/ca-trust/extracted/pem")
        _files(pod, main, "repositories", choice.repo_config, repositories, keys)
        _files(pod, main, "certificates", choice.cert_config, certificates, keys)
    _files(pod, main, "topology", choice.topology_config, "/etc/nvidia", {choice.topology_config: (_TOPOLOGY,)})
    if choice.license_secret or choice.license_config:
        source = (
            {"secret": {"secretName": choice.license_secret}}
            if choice.license_secret
            else {"configMap": {"name": choice.license_config}}
        )
        pod["volumes"].append({"name": "licensing", **source})
        paths = {_GRIDD: f"/drivers/{_GRIDD}"}
        if choice.license_token:
            paths[_TOKEN] = f"/drivers/ClientConfigToken/{_TOKEN}"
        for key, path in paths.items():
            mount = {"name": "licensing", "mountPath": path, "subPath": key, "readOnly": True}
            main["volumeMounts"].append(mount)


def _network_driver(pod: Manifest, main: Manifest, *, on_host: bool) -> None:
    """The network driver, which peer memory is built against: in a container of its own, or the host's."""
    run = "/run/mellanox/drivers"
    for volume, path, place in (
        ("run-mellanox-drivers", run, run),
        ("mlnx-ofed-usr-src", "/usr/src" if on_host else f"{run}/usr/src", f"{run}/usr/src"),
    ):
        pod["volumes"].append({"name": volume, "hostPath": {"path": path, "type": "DirectoryOrCreate"}})
        mount = {"name": volume, "mountPath": place, "mountPropagation": "HostToContainer"}
        main["volumeMounts"].append(mount)


def _files(pod: Manifest, main: Manifest, volume: str, config: str, directory: str, keys: Keys) -> None:
    """Each key of a ConfigMap as a file among those that the image has there."""
    if not config:
        return
    pod["volumes"].append({"name": volume, "configMap": {"name": config}})
    for key in keys.get(config, ()):
        mount = {"name": volume, "mountPath": f"{directory}/{key}", "subPath": key, "readOnly": True}
        main["volumeMounts"].append(mount)


def config_maps(choice: DriverChoice) -> tuple[str, ...]:
    """The ConfigMaps whose keys have to be known."""
    return (
        () if choice.own_image else tuple(filter(None, (choice.module_config, choice.repo_config, choice.cert_config)))
    )


def _timing(probe: Probe) -> dict[str, int]:
    timing: dict[str, int] = to_dict(probe)
    return timing


def set_env(container: Manifest, name: str, value: str) -> None:
    container["env"] = [entry for entry in container["env"] if entry["name"] != name] + [{"name": name, "value": value}]
