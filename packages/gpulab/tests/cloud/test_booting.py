"""Instances and nodes compared, user data read, bills summed: the cloud's decisions, without a cloud."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from gpulab.cloud.bill import make_bill
from gpulab.cloud.booting import cloud_nodes, node_spec, plan_boots
from gpulab.cloud.bootstrap import bootstrap_script, kubelet_settings
from gpulab.cloud.catalogue import cloud_types, instance_kubelet, instance_machine
from gpulab.cloud.command import age, bill_lines, fault_lines
from gpulab.cloud.instances import LabInstance
from gpulab.cloud.notices import spot_interruption
from gpulab.cloud.templates import built_in_templates, filled, merged, read_template
from gpulab.machines import find_machine
from gpuplane.autoscaler.overhead import allocatable
from kubekit.errors import InvalidInput
from simgpu import profile
from tinykube.cluster import KubeletSettings, MachineSpec

ONE = LabInstance(
    id="i-1",
    machine="g4dn.xlarge",
    zone="us-east-1b",
    capacity_type="spot",
    state="running",
    launched=100.0,
    address="10.0.16.7",
    user_data=bootstrap_script("demo"),
)


def other(**fields):
    return msgspec.structs.replace(ONE, **fields)


def test_a_running_instance_becomes_a_node_and_a_node_without_one_loses_its_machine():
    plan = plan_boots(
        [ONE, other(id="i-2"), other(id="i-3", state="terminated")], {"i-2": "b", "i-3": "c", "i-4": "d"}, (), 0, 100
    )
    assert plan.joins == (ONE,)
    assert plan.leaves == (("i-3", "c"), ("i-4", "d"))
    assert plan.later is None


@pytest.mark.parametrize(("now", "joins", "later"), [(100.0, 0, 30.0), (129.0, 0, 1.0), (130.0, 1, None)])
def test_a_slow_boot_takes_its_time(now, joins, later):
    plan = plan_boots([ONE], {}, (), 30.0, now)
    assert (len(plan.joins), plan.later) == (joins, later)


def test_an_instance_may_never_join_and_one_that_cannot_be_simulated_does_not():
    assert plan_boots([ONE, other(id="i-2", machine="m5.large")], {}, ("i-1",), 0, 200).joins == ()


def test_the_node_of_an_instance_has_what_a_cloud_gives_it():
    node = node_spec(ONE, "us-east-1")
    assert (node.name, node.machine) == ("ip-10-0-16-7", "g4dn.xlarge")
    assert node.kubelet.provider_id == "aws:///us-east-1b/i-1"
    assert node.kubelet.labels == {
        "topology.kubernetes.io/region": "us-east-1",
        "topology.kubernetes.io/zone": "us-east-1b",
    }
    assert node.kubelet.taints == (("karpenter.sh/unregistered", "", "NoExecute"),)
    assert cloud_nodes((MachineSpec(name="system", machine="cpu-ubuntu24"), node)) == {"i-1": "ip-10-0-16-7"}


def test_user_data_sets_labels_taints_and_pods_in_both_forms():
    script = (
        "/etc/eks/bootstrap.sh demo --use-max-pods false --kubelet-extra-args "
        "'--node-labels=a/b=c,d=e --register-with-taints=x=y:NoSchedule,broken,z:NoExecute --max-pods=17'"
    )
    settings = kubelet_settings(script, KubeletSettings())
    assert settings.labels == {"a/b": "c", "d": "e"}
    assert settings.taints == (("x", "y", "NoSchedule"), ("z", "", "NoExecute"))
    assert settings.max_pods == 17
    nodeadm = (
        'spec:\n  kubelet:\n    flags:\n    - --node-labels=team=ml\n    - --register-with-taints="q:NoSchedule"\n'
    )
    settings = kubelet_settings(nodeadm, KubeletSettings(max_pods=29))
    assert (settings.labels, settings.taints, settings.max_pods) == ({"team": "ml"}, (("q", "", "NoSchedule"),), 29)


def test_every_type_of_the_catalogue_is_a_machine_that_can_be_made():
    assert {"g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge"} <= set(cloud_types())
    for name, found in cloud_types().items():
        machine = find_machine(name)
        assert (machine.cpus, machine.memory_gib, machine.instance_type) == (found.vcpu, found.memory_mib >> 10, name)
        assert profile(machine.gpus).count == found.gpus
        assert not machine.preinstalled
    assert profile(instance_machine("g4dn.12xlarge").gpus).model.name == "Tesla T4"


def test_a_type_that_cannot_be_simulated_is_refused_with_those_that_can():
    with pytest.raises(InvalidInput, match=r"p9\.xlarge") as caught:
        find_machine("p9.xlarge")
    assert "g4dn.xlarge" in caught.value.cure


def test_a_node_offers_what_the_autoscaler_predicts():
    settings, free = instance_kubelet("g4dn.xlarge"), allocatable(cloud_types()["g4dn.xlarge"])
    assert 4000 - settings.reserved_cpu_milli == free["cpu"]
    assert (16384 - settings.reserved_memory_mib) << 20 == free["memory"]
    assert settings.max_pods == free["pods"]


# -- money -------------------------------------------------------------------------------------------------------------
def test_a_bill_counts_seconds_at_the_price_and_a_minute_at_least():
    instances = [ONE, other(id="i-2", capacity_type="on-demand", state="terminated")]
    bill = make_bill(instances, {"i-1": "ip-10-0-16-7"}, {"i-2": 110.0}, now=3700.0)
    assert [one.dollars for one in bill.instances] == [0.2104, round(0.526 / 60, 6)]
    assert bill.dollars_per_hour == 0.2104
    assert bill.dollars == round(0.2104 + round(0.526 / 60, 6), 6)
    text = "\n".join(bill_lines(bill, 80))
    assert "now 0.2104 $/h, so far 0.2192 $" in text
    assert "ip-10-0-16-7" not in text
    assert max(map(len, bill_lines(bill, 80))) <= 80
    assert "ip-10-0-16-7" in "\n".join(bill_lines(bill))
    assert bill_lines(make_bill([], {}, {}, 0)) == ["no instance was launched so far"]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7260, "2h1m")])
def test_ages_have_two_units_at_most(seconds, text):
    assert age(seconds) == text


def test_faults_are_listed():
    closed = {"machine": "g4dn.xlarge", "zone": "", "capacityType": "spot", "secondsLeft": None}
    found = {"closed": [closed], "counted": {"throttled": 2}, "bootSeconds": 30.0}
    assert fault_lines(found) == [
        "no capacity   g4dn.xlarge   spot   until opened",
        "throttled   2 more",
        "slow boots   30s",
    ]
    assert fault_lines({"closed": [], "counted": {}, "bootSeconds": 0.0}) == ["no fault is in force"]


# -- launch templates and notices --------------------------------------------------------------------------------------
def test_the_words_of_a_launch_template_are_filled_in():
    (gpu, shared) = built_in_templates()
    assert (gpu["LaunchTemplateName"], shared["LaunchTemplateName"]) == (
        "karpenter-gpu-demo",
        "karpenter-gpu-shared-demo",
    )
    data = filled(gpu, "ami-1", "sg-1")["LaunchTemplateData"]
    assert (data["ImageId"], data["SecurityGroupIds"]) == ("ami-1", ["sg-1"])
    assert "karpenter.sh/unregistered:NoExecute" in base64.b64decode(data["UserData"]).decode()
    assert gpu["LaunchTemplateData"]["ImageId"] == "IMAGE"


def test_a_template_of_a_file_replaces_the_built_in_one(tmp_path):
    path = tmp_path / "template.json"
    path.write_text(
        json.dumps({"LaunchTemplateName": "karpenter-gpu-demo", "LaunchTemplateData": {"ImageId": "ami-9"}})
    )
    found = {document["LaunchTemplateName"]: document for document in merged((read_template(path),))}
    assert set(found) == {"karpenter-gpu-demo", "karpenter-gpu-shared-demo"}
    assert found["karpenter-gpu-demo"]["LaunchTemplateData"] == {"ImageId": "ami-9"}


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"LaunchTemplateName": 3}', '{"LaunchTemplateName": "a"}'])
def test_a_file_without_a_template_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "template.json"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_template(path)
    # Text that is neither JSON nor YAML is refused with line and column: the parser names the end of the file.
    assert caught.value.where == str(path) + (":2:1" if text == "{" else "")


def test_a_notice_has_the_form_of_eventbridge():
    event = json.loads(spot_interruption("i-1", "us-east-1", 0.0))
    assert event["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert event["detail"] == {"instance-id": "i-1", "instance-action": "terminate"}
    assert event["time"] == "1970-01-01T00:00:00Z"
