"""Rules of the installation's accounts, each with a sentence on a stolen token: what a thief can do with it at most.

`rights.yaml` has the sentences, `install/` the rules; neither is complete without the other. A rule whose verbs or
resources change has no sentence until a person has looked at it again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from importlib import resources

import msgspec
import yaml

from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from gpuplane.operator.manifest import Manifest


class AccountRule(msgspec.Struct, frozen=True):
    """One rule of a role that is bound to an account; `namespace` is empty for a rule in the whole cluster."""

    account: str
    namespace: str
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...]
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        """Return the rule as `rights.yaml` spells it: verbs, resources, API group, names, namespace."""
        group = ", ".join(filter(None, self.groups))
        parts = [
            ", ".join(self.verbs),
            ", ".join(self.resources),
            f"of {group}" if group else "",
            f"named {', '.join(self.names)}" if self.names else "",
            f"in {self.namespace}" if self.namespace else "",
        ]
        return " ".join(filter(None, parts))


class AccountRights(msgspec.Struct, frozen=True):
    """The sentences about one account: the worst of all, and one for each rule."""

    most: str
    rules: dict[str, str]


def granted(manifests: Iterable[Manifest] | None = None) -> list[AccountRule]:
    """Return the rules of all accounts, those of the parts that are left out unless asked for included.

    Args:
        manifests: of the installation; None for all of its parts.
    """
    every = AutoscalerInstall({"CLUSTER_NAME": "-"})
    wanted = list(manifests or installation(pod_scheduler=True, autoscaler=every, dashboard=()))
    roles = {_place(one): one["rules"] for one in wanted if one["kind"] in ("Role", "ClusterRole")}
    return [
        rule for one in wanted if one["kind"] in ("RoleBinding", "ClusterRoleBinding") for rule in _bound(one, roles)
    ]


def _place(manifest: Manifest) -> tuple[str, str, str]:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]


def _bound(binding: Manifest, roles: dict[tuple[str, str, str], list[Manifest]]) -> Iterator[AccountRule]:
    """Yield the rules that a binding grants."""
    namespace = binding["metadata"].get("namespace", "")
    role = binding["roleRef"]
    place = (role["kind"], namespace if role["kind"] == "Role" else "", role["name"])
    for subject in binding["subjects"]:
        for rule in roles[place]:
            yield AccountRule(
                account=subject["name"],
                namespace=namespace,
                groups=tuple(rule["apiGroups"]),
                resources=tuple(rule["resources"]),
                names=tuple(rule.get("resourceNames", ())),
                verbs=tuple(rule["verbs"]),
            )


@functools.cache
def sentences() -> dict[str, AccountRights]:
    """Return the sentences of `rights.yaml`, by account."""
    text = resources.files(__package__).joinpath("rights.yaml").read_text()
    return msgspec.convert(yaml.safe_load(text), dict[str, AccountRights])
