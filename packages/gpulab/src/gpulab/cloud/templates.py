"""Launch templates of the simulated cloud: the two that Karpenter's examples for shared GPUs name, and those of files.

A document has the form of CreateLaunchTemplate. Three words in it stand for things that the cloud makes: IMAGE,
NODE_SECURITY_GROUP and BASE64_OF_BOOTSTRAP_WITH_CLUSTER_NAME.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpulab.cloud.bootstrap import bootstrap_script
from gpulab.cloud.settings import CLUSTER_NAME, DISCOVERY_TAG
from kubekit.documents import FileError, read_file
from kubekit.errors import InvalidInput
from kubekit.yaml_documents import load_yaml

IMAGE: Final = "IMAGE"
GROUP: Final = "NODE_SECURITY_GROUP"
BOOTSTRAP: Final = "BASE64_OF_BOOTSTRAP_WITH_CLUSTER_NAME"
_BUILT_IN: Final = {"karpenter-gpu-demo": "gpu", "karpenter-gpu-shared-demo": "gpu-shared"}


def built_in_templates() -> list[dict[str, Any]]:
    """Return the documents of the two templates."""
    return [_document(name, kind) for name, kind in _BUILT_IN.items()]


def _document(name: str, kind: str) -> dict[str, Any]:
    discovery = {"Key": DISCOVERY_TAG, "Value": CLUSTER_NAME}
    return {
        "LaunchTemplateName": name,
        "LaunchTemplateData": {
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 120}}],
            "IamInstanceProfile": {"Name": f"karpenter-{CLUSTER_NAME}"},
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [discovery, {"Key": "node-type", "Value": kind}]},
            ],
            "ImageId": IMAGE,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "optional", "HttpPutResponseHopLimit": 2},
            "SecurityGroupIds": [GROUP],
            "UserData": BOOTSTRAP,
        },
        "TagSpecifications": [
            {"ResourceType": "launch-template", "Tags": [discovery, {"Key": "node-type", "Value": kind}]},
        ],
    }


def read_template(path: Path) -> dict[str, Any]:
    """Read a document from a file of JSON or YAML. Raises InvalidInput."""
    try:
        document = load_yaml(read_file(path), where=str(path))
    except FileError as error:
        raise InvalidInput(error.what, where=error.where, cure=error.cure) from error
    cure = "the form is that of aws ec2 create-launch-template --cli-input-json"
    if not isinstance(document, dict) or not isinstance(document.get("LaunchTemplateName"), str):
        raise InvalidInput("LaunchTemplateName is missing", where=str(path), cure=cure)
    if not isinstance(document.get("LaunchTemplateData"), dict):
        raise InvalidInput("LaunchTemplateData is missing", where=str(path), cure=cure)
    return document


def merged(documents: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Return the built-in documents and others; one of a built-in name replaces it."""
    named = {document["LaunchTemplateName"]: document for document in (*built_in_templates(), *documents)}
    return list(named.values())


def filled(document: Mapping[str, Any], image: str, group: str) -> dict[str, Any]:
    """Return a document with what its words stand for."""
    script = base64.b64encode(bootstrap_script(CLUSTER_NAME).encode()).decode()
    words = {IMAGE: image, GROUP: group, BOOTSTRAP: script}
    return {name: _replaced(value, words) for name, value in document.items()}


def _replaced(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _replaced(below, words) for name, below in value.items()}
    if isinstance(value, list):
        return [_replaced(below, words) for below in value]
    return words.get(value, value) if isinstance(value, str) else value
