"""Prints kube-scheduler's configuration for the extender: `gpuplane run scheduler --print-config FORM`.

    kube      KubeSchedulerConfiguration (v1): Kubernetes 1.25 and later
    policy    the Policy file of Kubernetes before 1.23, for filter only, as gpu-admission was used
    second    a second kube-scheduler, where the configuration of the cluster's own is out of reach

The files are in `manifests/`, as they ship; only the extender's URL, the directory of kube-scheduler's certificate and
the name of the second scheduler are set here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, Final

import msgspec
import yaml

from gpuplane import names
from kubekit.errors import UsageError

PORT: Final = 3456
SERVICE: Final = names.EXTENDER_NAME
SECOND_SCHEDULER: Final = names.SCHEDULER_NAME  # spec.schedulerName of the pods that it places
SECOND: Final = names.SECOND_SCHEDULER_NAME
CERTIFICATES_VOLUME: Final = "extender"  # of the second scheduler: the Secret with the files below
AUTHORITIES, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
Manifest = dict[str, Any]


def printed(form: str, url: str = "", certificates: str = "") -> str:
    """Return the text for a form; `url` is where kube-scheduler reaches the extender, the Service when empty, and
    `certificates` its directory of ca.crt, tls.crt and tls.key.

    Raises UsageError for an unknown form.
    """
    write = FORMS.get(form)
    if write is None:
        raise UsageError(f"--print-config {form}?", cure=f"one of {', '.join(FORMS)}")
    place = (url or f"https://{SERVICE}.{names.OPERATOR_NAMESPACE}:{PORT}").rstrip("/")
    return write(place, certificates or names.EXTENDER_CLIENT_DIRECTORY)


def kube_configuration(
    url: str, certificates: str = names.EXTENDER_CLIENT_DIRECTORY, scheduler_name: str = ""
) -> Manifest:
    """Return a KubeSchedulerConfiguration: for pods that name this scheduler, or without a name for all pods."""
    (configuration,) = _load("kube.yaml")
    (extender,) = configuration["extenders"]
    extender |= {"urlPrefix": url, "enableHTTPS": _is_https(url)}
    _set_certificates(extender, url, certificates)
    if scheduler_name:
        configuration["profiles"] = [{"schedulerName": scheduler_name}]
        configuration["leaderElection"] |= {"resourceName": SECOND, "resourceNamespace": names.OPERATOR_NAMESPACE}
    return configuration


def second_scheduler(url: str, certificates: str = names.EXTENDER_CLIENT_DIRECTORY) -> list[Manifest]:
    """Return kube-scheduler as a Deployment, for pods with `schedulerName: gpuplane`."""
    manifests = _load("second.yaml")
    for manifest in manifests:
        if manifest["kind"] == "ConfigMap":
            configuration = kube_configuration(url, certificates, SECOND_SCHEDULER)
            manifest["data"]["config.yaml"] = yaml.safe_dump(configuration, sort_keys=False)
        if manifest["kind"] == "Deployment":
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            for mount in container["volumeMounts"]:
                if mount["name"] == CERTIFICATES_VOLUME:
                    mount["mountPath"] = certificates
    return manifests


def _is_https(url: str) -> bool:
    return url.startswith("https:")


def _set_certificates(extender: Manifest, url: str, directory: str) -> None:
    """Name the files by which kube-scheduler and the extender know each other; an extender by HTTP has none."""
    if not _is_https(url):
        del extender["tlsConfig"]
        return
    folder = directory.rstrip("/")
    extender["tlsConfig"] |= {
        "caFile": f"{folder}/{AUTHORITIES}",
        "certFile": f"{folder}/{CERTIFICATE}",
        "keyFile": f"{folder}/{KEY}",
    }


def _load(name: str) -> list[Manifest]:
    text = resources.files(__package__).joinpath("manifests", name).read_text()
    return list(yaml.safe_load_all(text))


def _kube(url: str, certificates: str) -> str:
    return yaml.safe_dump(kube_configuration(url, certificates), sort_keys=False)


def _policy(url: str, certificates: str) -> str:
    (policy,) = _load("policy.yaml")
    (extender,) = policy["extenders"]
    extender |= {"urlPrefix": f"{url}/scheduler", "enableHttps": _is_https(url)}
    _set_certificates(extender, url, certificates)
    return msgspec.json.format(msgspec.json.encode(policy), indent=2).decode() + "\n"


def _second(url: str, certificates: str) -> str:
    return yaml.safe_dump_all(second_scheduler(url, certificates), sort_keys=False)


FORMS: Final[dict[str, Callable[[str, str], str]]] = {"kube": _kube, "policy": _policy, "second": _second}
