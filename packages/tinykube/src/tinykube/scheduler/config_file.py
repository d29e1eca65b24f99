"""Reads the scheduler's configuration file: a `KubeSchedulerConfiguration`, or a `Policy` of releases before 1.23."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kubekit.documents import LONGEST_SETTINGS, DocumentError, FileError, read_file
from kubekit.errors import InvalidInput
from kubekit.yaml_documents import load_yaml
from tinykube.scheduler.config import API_VERSION, SchedulerConfig, seconds
from tinykube.scheduler.policy import KIND as POLICY
from tinykube.scheduler.policy import SchedulerPolicy, settings, unknown_predicates


def parse(text: str | bytes, where: str = "") -> SchedulerConfig:
    """Read a configuration in YAML or JSON. Raises InvalidInput with every finding it can name."""
    findings = []
    try:
        document = load_yaml(text, limit=LONGEST_SETTINGS, plain=True)
        if isinstance(document, dict) and document.get("kind") == POLICY:
            policy = msgspec.convert(document, SchedulerPolicy)
            findings += [f"predicates: {name!r} is unknown" for name in unknown_predicates(policy)]
            config: SchedulerConfig = settings(policy)
        else:
            config = msgspec.convert(document, SchedulerConfig)
    except (msgspec.ValidationError, DocumentError) as error:
        raise InvalidInput(
            f"not a configuration that the embedded scheduler can follow: {error}",
            where=where,
            cure="it knows profiles[].schedulerName, percentageOfNodesToScore and extenders,"
            " and of a Policy its predicates and extenders",
        ) from error
    if (config.api_version, config.kind) != (API_VERSION, "KubeSchedulerConfiguration"):
        findings.append(f"{config.api_version} {config.kind} is not {API_VERSION} KubeSchedulerConfiguration")
    for index, extender in enumerate(config.extenders):
        place = f"extenders[{index}]"
        if extender.prioritize_verb and extender.weight <= 0:
            findings.append(f"{place}.weight: must be positive when prioritizeVerb is set")
        try:
            seconds(extender.http_timeout)
        except InvalidInput as error:
            findings.append(f"{place}.httpTimeout: {error}")
    if sum(bool(extender.bind_verb) for extender in config.extenders) > 1:
        findings.append("extenders: only one of them may have a bindVerb")
    if findings:
        raise InvalidInput("; ".join(findings), where=where, findings=tuple(findings))
    return config


def load(path: Path) -> SchedulerConfig:
    """Read a configuration file. Raises InvalidInput."""
    try:
        text = read_file(path, limit=LONGEST_SETTINGS)
    except FileError as error:
        raise InvalidInput(error.what, where=error.where, cure=error.cure) from error
    return parse(text, str(path))
