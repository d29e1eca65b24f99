"""Runs gpuplane's programs in the pods of gpu-manager and gpu-admission: pure, from the pod to a JSON Patch.

    image tkestack/gpu-manager:TAG           ->  gpuplane run gpu-manager: metrics of this node's shares, port 5678
    image tkeimages/gpu-quota-admission:TAG  ->  gpuplane run scheduler --plain-http: the extender, port 3456

Their own programs would offer and place the same GPUs a second time. With ours the objects of their manifests stay:
Services have endpoints, and a scheduler's configuration that names them works.

Invariants:

- Only containers of the published images are touched, in whatever registry they lie; a second time nothing changes. A
  program of another owner with such a name is left alone.
- A warning reports it to the author of the DaemonSet, Deployment or pod.
- gpuplane's programs get no access to the host: they need none.
- A flag in EXTRA_FLAGS acts, or agrees with what gpuplane does, or the pod is refused with its name.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator
from typing import Any, Final

from gpuplane.admission.translate import Translation, difference
from gpuplane.api.finding import Finding
from kubekit.errors import InvalidInput

Object = dict[str, Any]
_MANAGER: Final = "gpu-manager"
_QUOTAS: Final = "gpu-quota-admission"
_EXTENDER: Final = "scheduler"
_PROGRAMS: Final = {_MANAGER: "gpu-manager", _QUOTAS: _EXTENDER, "gpu-admission": _EXTENDER}
_OWNERS: Final = frozenset({"tkestack", "tkeimages"})
_WHAT_RUNS: Final = {
    _MANAGER: "serves the metrics of gpuplane's device plugin; GPUs are offered by gpuplane alone",
    _EXTENDER: "is gpuplane's extender",
}
_PORT_FLAGS: Final = frozenset({"query-port", "port", "address"})
_ANY: Final[tuple[str, ...]] = ()
# Flags that change nothing here, with the values that agree, the usual one first: logs, credentials, the place of
# gpu-manager's own files, and its way to containers. (options.go of gpu-manager 1.0 and 1.1, main.go of gpu-admission)
_AGREEING: Final = {
    **dict.fromkeys(("logtostderr", "alsologtostderr", "stderrthreshold", "log-dir", "v", "vmodule"), _ANY),
    **dict.fromkeys(("log-backtrace-at", "incluster-mode", "kubeconfig", "master"), _ANY),
    **dict.fromkeys(("virtual-manager-path", "device-plugin-path", "checkpoint-path"), _ANY),
    **dict.fromkeys(("container-runtime", "container-runtime-endpoint", "cgroup-driver"), _ANY),
    **dict.fromkeys(("runtime-request-timeout", "wait-timeout", "allocation-check-period"), _ANY),
    "driver": ("nvidia",),
    "share-mode": ("true", "1", "t", "T", "TRUE", "True"),
    "query-addr": ("0.0.0.0", "::", "$(POD_IP)"),
    "hostname-override": ("$(NODE_NAME)", ""),
    "node-labels": ("",),
    "extra-config": ("/etc/gpu-manager/extra-config.json",),
    "volume-config": ("/etc/gpu-manager/volume.conf",),
}
# Their value needs a "=", and without one they are true.
_SWITCHES: Final = frozenset({"logtostderr", "alsologtostderr", "incluster-mode", "share-mode"})
_FIELDS: Final = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
_FLAGS_VARIABLE: Final = "EXTRA_FLAGS"
_TEMPLATES: Final = {
    "Pod": ("spec",),
    "DaemonSet": ("spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
}


def take_over(pod: Object, image: str) -> Translation:
    """Return the patch that has gpuplane's `image` run in place of gpu-manager's; empty for other pods.

    Raises InvalidInput for flags that gpuplane has no setting for.
    """
    now = copy.deepcopy(pod)
    containers = [container for container in now["spec"]["containers"] if _program(container)]
    if not containers:
        return Translation()
    for container in containers:
        program = _program(container)
        container |= {
            "image": image,
            "command": ["gpuplane"],
            # The schedulers of that time call by HTTP.
            "args": ["run", program, *(("--plain-http",) if program == _EXTENDER else ()), *_arguments(container)],
            "env": [*_environment(container, program)],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    _take_from_host(now["spec"], containers)
    return Translation(tuple(difference(pod, now)), tuple(warnings(pod["spec"])))


def refused_image(pod: Object, old: Object) -> str:
    """Return why a pod that is there already may not get an image of gpu-manager; empty where it gets none."""
    before = {one.get("name"): one.get("image") for one in old.get("spec", {}).get("containers") or ()}
    for container in pod["spec"]["containers"]:
        name, image = container.get("name"), container.get("image")
        if _program(container) and image != before.get(name):
            return f"GP210 container {name}: a pod that is there already cannot get {image}; create the pod again"
    return ""


def warnings(spec: Object) -> Iterator[str]:
    """Yield what runs in the pods of a spec instead of its images."""
    for container in spec["containers"]:
        if program := _program(container):
            yield f"container {container.get('name')}: gpuplane run {program} runs here, which {_WHAT_RUNS[program]}"


def taken_over(data: Any) -> list[Finding]:
    """Find what admission does to the pods of a manifest: nothing, unless they are gpu-manager's."""
    steps = _TEMPLATES.get(str(data.get("kind", ""))) if isinstance(data, dict) else None
    for step in steps or ():
        data = data.get(step) if isinstance(data, dict) else None
    if steps is None or not isinstance(data, dict):
        return []
    found = []
    for index, container in enumerate(_items(data.get("containers"))):
        path = ".".join((*steps, f"containers[{index}]"))
        if not isinstance(container, dict) or not (program := _program(container)):
            continue
        message = f"gpuplane run {program} runs instead, which {_WHAT_RUNS[program]}"
        cure = "none is needed; gpuplane does the work without this manifest too"
        found.append(Finding(code="GP210", path=f"{path}.image", message=message, cure=cure, severity="warning"))
        try:
            tuple(_arguments(container))
        except InvalidInput as error:
            found.append(Finding(code="GP209", path=f"{path}.env", message=error.what, cure=error.cure))
    return found


def _take_from_host(spec: Object, containers: list[Object]) -> None:
    """Remove the host's directories from our containers, and from the pod if nothing else mounts them.

    The volume with the account's token stays: the API server has added it before.
    """
    host = {volume["name"] for volume in spec.get("volumes") or () if "hostPath" in volume}
    for container in containers:
        if mounts := container.get("volumeMounts"):
            container["volumeMounts"] = [mount for mount in mounts if mount["name"] not in host]
    everyone = [*spec["containers"], *(spec.get("initContainers") or ())]
    mounted = {mount["name"] for container in everyone for mount in container.get("volumeMounts") or ()}
    if host - mounted:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in host - mounted]
    if "hostPID" in spec and len(containers) == len(spec["containers"]):
        del spec["hostPID"]


def _program(container: Object) -> str:
    path, _, name = str(container.get("image") or "").partition("@")[0].rpartition("/")
    owner = path.rpartition("/")[2]
    return _PROGRAMS.get(name.partition(":")[0], "") if owner in _OWNERS else ""


def _arguments(container: Object) -> Iterator[str]:
    """Yield the arguments that EXTRA_FLAGS means. Raises InvalidInput for a flag that would have no effect."""
    where = f"container {container.get('name')}: {_FLAGS_VARIABLE}"
    words = _words(container, where)
    while words:
        word = words.pop(0)
        flag, is_given, value = word.lstrip("-").partition("=")
        flag = flag.replace("_", "-")
        if not word.startswith("-"):
            raise InvalidInput(f"{word} is no flag", where=where, cure="remove it")
        if flag not in _PORT_FLAGS and flag not in _AGREEING:
            raise InvalidInput(f"--{flag} has no meaning in gpuplane, which runs here", where=where, cure="remove it")
        if not is_given and flag not in _SWITCHES and words and not words[0].startswith("-"):
            value = words.pop(0)
        if not is_given and flag in _SWITCHES:
            value = "true"
        agreeing = _AGREEING.get(flag, _ANY)
        if agreeing and value not in agreeing:
            what = f"--{flag}={value} is not what gpuplane, which runs here, does"
            raise InvalidInput(what, where=where, cure=f"remove it, or --{flag}={agreeing[0]}")
        if flag in _PORT_FLAGS:
            port = value.rpartition(":")[2]
            if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
                raise InvalidInput(f"--{flag}={value} names no port", where=where, cure=f"--{flag}=5678")
            yield f"--port={port}"


def _words(container: Object, where: str) -> list[str]:
    """Split EXTRA_FLAGS as a shell does. A manifest that no API server has seen may hold anything in its place."""
    variables = [one for one in _items(container.get("env")) if isinstance(one, dict)]
    text = next((one.get("value") for one in variables if one.get("name") == _FLAGS_VARIABLE), None)
    if text is not None and not isinstance(text, str):
        raise InvalidInput(f"{text!r} is no text", where=where, cure="put the value in quotes")
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise InvalidInput(f"{text!r} has an open quote: {error}", where=where, cure="close the quote") from error


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _environment(container: Object, program: str) -> Iterator[Object]:
    """Yield the container's variables, and those by which gpuplane's programs know their pod."""
    own = container.get("env") or []
    yield from own
    fields = _FIELDS | ({"NODE_NAME": "spec.nodeName"} if program == _MANAGER else {})
    for name, field in fields.items():
        if all(variable.get("name") != name for variable in own):
            yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
