"""KubeSchedulerConfiguration files: what is read, and what is refused instead of being ignored."""

from __future__ import annotations

import pytest

from kubekit.errors import InvalidInput
from tinykube.scheduler import load
from tinykube.scheduler.config import ManagedResource, seconds
from tinykube.scheduler.config_file import parse

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
POLICY = "apiVersion: v1\nkind: Policy\n"
EXTENDER = (
    HEAD
    + """
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
profiles: [{schedulerName: default-scheduler}, {schedulerName: gpus}]
extenders:
- urlPrefix: "http://127.0.0.1:3456/scheduler"
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  weight: 5
  enableHTTPS: false
  nodeCacheCapable: true
  httpTimeout: 1m30s
  ignorable: true
  managedResources:
  - {name: tencent.com/vcuda-core, ignoredByScheduler: true}
"""
)


def test_an_extender_is_read_as_it_is_written():
    config = parse(EXTENDER)
    assert config.names == {"default-scheduler", "gpus"}
    extender = config.extenders[0]
    assert extender.timeout_s == 90.0
    assert extender.node_cache_capable
    assert extender.managed_resources == (ManagedResource(name="tencent.com/vcuda-core", ignored_by_scheduler=True),)


def test_the_part_of_the_nodes_to_search_is_read():
    assert parse(HEAD + "percentageOfNodesToScore: 70\n").percentage_of_nodes_to_score == 70


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (HEAD + "percentageOfNodesToScore: 101\n", "percentageOfNodesToScore"),
        (HEAD + "podMaxBackoffSeconds: 20\n", "podMaxBackoffSeconds"),
        (HEAD + "profiles: [{plugins: {}}]\n", "plugins"),
        (HEAD + "extenders: [{filterVerb: filter}]\n", "urlPrefix"),
        (HEAD + "extenders: [{urlPrefix: 'http://x', httpTimeout: soon}]\n", "'soon' is not a duration"),
        (HEAD + "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: 0}]\n", "weight"),
        (HEAD + "extenders: [{urlPrefix: a, bindVerb: b}, {urlPrefix: c, bindVerb: b}]\n", "only one of them"),
        ("apiVersion: v1\nkind: ConfigMap\n", "v1 ConfigMap is not"),
        (POLICY + "predicates: [{name: PodFitsAll}]\n", "'PodFitsAll' is unknown"),
        (POLICY + "priorities: [{name: EqualPriority, weight: 1}]\n", "priorities"),
        (POLICY + "alwaysCheckAllPredicates: true\n", "alwaysCheckAllPredicates"),
        (POLICY + "extenders: [{urlPrefix: a, enableHTTPS: true}]\n", "enableHTTPS"),
        ("{", "not a configuration"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(text, finding):
    with pytest.raises(InvalidInput) as caught:
        parse(text, "scheduler.yaml")
    assert finding in str(caught.value)
    assert caught.value.where == "scheduler.yaml"


def test_a_policy_file_of_old_releases_is_read_as_it_is_written():
    text = """{
      "kind": "Policy", "apiVersion": "v1",
      "predicates": [{"name": "PodFitsHostPorts"}, {"name": "PodFitsResources"}, {"name": "HostName"}],
      "extenders": [{"urlPrefix": "http://extender.kube-system:3456/scheduler", "apiVersion": "v1beta1",
        "filterVerb": "predicates", "enableHttps": false, "nodeCacheCapable": false, "httpTimeout": 2500000000}],
      "hardPodAffinitySymmetricWeight": 10, "alwaysCheckAllPredicates": false}"""
    config = parse(text)
    [extender] = config.extenders
    assert (extender.filter_verb, extender.prioritize_verb, extender.bind_verb) == ("predicates", "", "")
    assert (extender.timeout_s, extender.node_cache_capable) == (2.5, False)
    assert config.hard_affinity_weight == 10
    assert config.names == {"default-scheduler"}
    [extender] = parse(POLICY + "extenders: [{urlPrefix: 'http://x'}]\n").extenders
    assert extender.timeout_s == 5.0, "the default of those releases"


def test_all_findings_come_at_once():
    text = HEAD + "extenders: [{urlPrefix: a, bindVerb: b, httpTimeout: x}, {urlPrefix: c, bindVerb: b}]\n"
    with pytest.raises(InvalidInput) as caught:
        parse(text)
    assert len(caught.value.findings) == 2


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path / "none.yaml")
    assert caught.value.where == str(tmp_path / "none.yaml")


@pytest.mark.parametrize(("text", "value"), [("100ms", 0.1), ("5s", 5.0), ("1m30s", 90.0), ("1.5h", 5400.0)])
def test_durations(text, value):
    assert seconds(text) == pytest.approx(value)
