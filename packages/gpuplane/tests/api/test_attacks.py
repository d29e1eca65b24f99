"""Texts of users and tenants made to end, hang or fill a component: each is refused in words, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.admission.review import ReviewVerdict, answer
from gpuplane.api.manifests import check_text
from gpuplane.api.pluginconfig import load
from gpuplane.api.upgrade import UpgradeRecord, upgrade_record
from gpuplane.autoscaler.providers.aws.market import read_products
from gpuplane.autoscaler.providers.aws.notices import read_notice
from gpuplane.device_plugin.nri.deferred import deferred_of
from gpuplane.discovery.sources.custom import parse as parse_rules
from gpuplane.exporter.choice import load as load_fields
from gpuplane.operator.installation import installation
from gpuplane.scheduler import wire
from gpuplane.scheduler.quota import parse_quotas
from gpuplane.toolkit.json_edit import parse as parse_daemon
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, Terminal

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
DEEP = "[" * 100_000
YAML = {
    "list": (DEEP, "is nested more than 100 deep"),
    "mapping": ("{a: " * 100_000, "is nested more than 100 deep"),
    "aliases": (BOMB, "has aliases that stand for more than 1 MiB of text"),
    "itself": ("a: &a [*a]", "has aliases that stand for more"),
    "tag": ("a: !!int x", "this is no int"),
}
JSON = {
    "list": DEEP.encode(),
    "object": b'{"a":' * 100_000,
    "in a field": b'{"request":{"uid":"1","object":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}}",
    "no UTF-8": b'{"request":{"uid":"\xff"}}',
    "empty": b"",
}


@pytest.mark.parametrize(("text", "why"), YAML.values(), ids=YAML)
def test_yaml_that_attacks_a_reader(text: str, why: str) -> None:
    (found,) = check_text(text)
    (finding,) = found.findings
    assert (finding.code, why in finding.message) == ("GP100", True), finding
    with pytest.raises(InvalidInput, match=why) as raised:
        load(text.encode(), where="f")
    assert raised.value.where.startswith("f:1:" if text.count("\n") < 2 else "f:5:")
    with pytest.raises(InvalidInput, match=why):
        parse_rules(text.encode(), "f")


def test_documents_before_an_attack_are_checked() -> None:
    found = check_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: a}\nspec: {drive: 1}\n---\n" + DEEP
    )
    assert [finding.code for document in found for finding in document.findings] == ["GP110", "GP100"]
    assert found[-1].line == 6


def test_aliases_within_the_limit_take_seconds_at_most() -> None:
    """Each alias is looked at as often as it stands there: 60,000 values, not nine to the eleventh."""
    (found,) = check_text("kind: A\nmetadata: &a [" + "x," * 800 + "]\nspec: [" + "*a," * 75 + "]\n")
    assert found.kind == "A"


@pytest.mark.parametrize("body", JSON.values(), ids=JSON)
def test_json_that_attacks_a_reader(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="no AdmissionReview"):
        answer(body, lambda question: ReviewVerdict())
    for read in (wire.filter_args, wire.bind_args, wire.preempt_args):
        with pytest.raises(InvalidInput, match="this is no Extender"):
            read(body)
    text = body.decode("utf-8", errors="surrogateescape")
    with pytest.raises(InvalidInput):
        parse_quotas(text)
    if text:
        with pytest.raises(InvalidInput):
            parse_daemon(text, "daemon.json")
    assert read_notice(text) == ("", ())
    assert read_products([text]) == {}
    node = Node(metadata=ObjectMeta(name="n", annotations={names.UPGRADE_RECORD_ANNOTATION: text}))
    assert upgrade_record(node) == UpgradeRecord()
    with pytest.raises(Terminal, match="is broken"):
        deferred_of({f"{names.NRI_GIVEN_PREFIX}a": text}, {})


def test_a_setting_of_the_command_line_that_attacks_its_reader() -> None:
    with pytest.raises(InvalidInput, match="is nested more than 100 deep") as raised:
        installation(settings=[f"driver.enabled={DEEP}"])
    assert raised.value.where.startswith("--set driver.enabled:1:")


def test_a_list_of_fields_is_a_regular_file() -> None:
    with pytest.raises(InvalidInput, match="the list of fields cannot be read: it is a device"):
        load_fields(Path("/dev/zero"))
