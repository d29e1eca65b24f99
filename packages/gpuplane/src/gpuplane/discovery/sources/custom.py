"""Rules that a node evaluates by itself: the built-in ones, and those that users leave in `custom.d` on the machine.

They make labels and variables only. A file is taken whole or not at all, as feature files are.
"""

from __future__ import annotations

import textwrap
from typing import Final

import msgspec

from gpuplane import names as known
from gpuplane.api.nodefeature import (
    FeatureMatch,
    FeatureRule,
    MatchExpression,
    NodeFeatureRule,
    NodeFeatureRuleSpec,
)
from gpuplane.discovery.sources.reading import names
from gpuplane.host import Host, HostError
from kubekit.documents import DocumentError, decode_text
from kubekit.errors import InvalidInput

DIRECTORY: Final = "etc/kubernetes/node-feature-discovery/custom.d"
_EXISTS: Final = MatchExpression(op="Exists")

BUILT_IN: Final = (
    FeatureRule(
        name="network adapters that can do RDMA",
        labels={"rdma.capable": "true"},
        match_features=(
            FeatureMatch(feature="pci.device", match_expressions={"vendor": MatchExpression(op="In", value=("15b3",))}),
        ),
    ),
    FeatureRule(
        name="modules for RDMA are loaded",
        labels={"rdma.available": "true"},
        match_features=(
            FeatureMatch(feature="kernel.loadedmodule", match_expressions={"ib_uverbs": _EXISTS, "rdma_ucm": _EXISTS}),
        ),
    ),
)
# The file is checked as what it would be in a NodeFeatureRule, of which these are the lines before it.
_HEAD: Final = (
    "apiVersion: nfd.k8s-sigs.io/v1alpha1\nkind: NodeFeatureRule\nmetadata: {name: custom}\nspec:\n  rules:\n"
)


class CustomRules(msgspec.Struct, frozen=True):
    """The rules, by file, with the bytes that they were read from; `problems`: of files that could not be taken."""

    files: dict[str, tuple[bytes, tuple[FeatureRule, ...]]] = {}
    problems: tuple[InvalidInput, ...] = ()

    @property
    def rules(self) -> NodeFeatureRule:
        """All of them as one object; names of labels without a prefix begin with `custom-`."""
        found = [*BUILT_IN, *(rule for _, (_, rules) in sorted(self.files.items()) for rule in rules)]
        return NodeFeatureRule(spec=NodeFeatureRuleSpec(rules=tuple(map(_named, found))))


def load_rules(host: Host, before: CustomRules | None = None) -> CustomRules:
    """All files as they are now; one that did not change since `before` is not read again."""
    files: dict[str, tuple[bytes, tuple[FeatureRule, ...]]] = {}
    problems = []
    for name in names(host, DIRECTORY):
        if name.startswith(".") or not name.endswith((".yaml", ".yml")):
            continue
        path = f"{DIRECTORY}/{name}"
        old = before.files.get(name) if before is not None else None
        try:
            data = host.read(path)
            if data is not None:
                files[name] = old if old is not None and old[0] == data else (data, parse(data, f"/{path}"))
        except InvalidInput as error:
            problems.append(error)
        except HostError as error:
            problems.append(InvalidInput(error.what, where=f"/{path}", cure=error.cure or "make it a readable file"))
        if name not in files and old is not None:
            files[name] = old
    return CustomRules(files, tuple(problems))


def parse(data: bytes, path: str) -> tuple[FeatureRule, ...]:
    """A list of rules in YAML. Raises InvalidInput for the first mistake, with its line."""
    from gpuplane.api.manifests import check_text  # late: few machines have such a file
    from kubekit.yaml_documents import load_yaml

    try:
        text = decode_text(data, where=path)
        found = load_yaml(text, where=path)
    except DocumentError as error:
        cure = error.cure or "correct the line, or the one before"
        raise InvalidInput(f"cannot be read as YAML: {error.problem}", where=error.where, cure=cure) from error
    if not isinstance(found, list):
        raise InvalidInput("is no list of rules", where=f"{path}:1", cure="begin each rule with - name:")
    checked = check_text(_HEAD + textwrap.indent(text, "  "))
    for finding in (finding for document in checked for finding in document.findings):
        if finding.severity == "error":
            line = max(1, finding.line - _HEAD.count("\n"))
            what = f"{finding.path.removeprefix('spec.')} {finding.message}".strip()
            raise InvalidInput(what, where=f"{path}:{line}", cure=finding.cure or f"gpuplane explain {finding.code}")
    rules = tuple(msgspec.convert(found, list[FeatureRule]))
    for rule in rules:
        if rule.taints or rule.extended_resources or rule.annotations:
            what = f"rule {rule.name!r} makes more than labels"
            cure = "taints, resources and annotations are for NodeFeatureRule objects"
            raise InvalidInput(what, where=path, cure=cure)
    return rules


def _named(rule: FeatureRule) -> FeatureRule:
    labels = {
        name if "/" in name else f"{known.FEATURE_PREFIX}custom-{name}": value for name, value in rule.labels.items()
    }
    return msgspec.structs.replace(rule, labels=labels)
