"""The scheduler's requests to an extender, and its use of the answers."""

from __future__ import annotations

import pytest

from tests.support.anycluster.api import Api
from tests.support.anycluster.extender import SHARE, serving

pytestmark = pytest.mark.alone


@pytest.fixture
def extender(here, cluster):
    """Return an extender that lets every node pass, gives all the same score, and binds."""
    here.normal.names[f"127.0.0.1:{cluster.extender_port}"] = "EXTENDER"
    api = Api(cluster.kubeconfig)
    with serving(cluster.extender_port) as running:

        def bind(asked):
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": asked["PodName"], "uid": asked["PodUID"], "annotations": {"share": "1"}},
                "target": {"kind": "Node", "name": asked["Node"]},
            }
            done = api.create(here.core(f"pods/{asked['PodName']}/binding"), binding)
            return {"Error": "" if done.status == 201 else str(done.body)}

        running.answers = {
            "filter": lambda asked: {"NodeNames": asked["NodeNames"]},
            "prioritize": lambda asked: [{"Host": name, "Score": 0} for name in asked["NodeNames"]],
            "bind": bind,
        }
        yield running
    api.close()


@pytest.fixture
def nodes(here):
    return [here.node(name) for name in "abc"]


def asking(here, name):
    container = {"name": "c", "image": "i", "resources": {"limits": {SHARE: "1"}}}
    return here.made(here.core("pods"), here.pod(name, containers=[container]))


def scheduled(found):
    return [c for c in (found.get("status") or {}).get("conditions") or () if c["type"] == "PodScheduled"]


def until_bound(here, name):
    return here.until(here.core(f"pods/{name}"), lambda found: found["spec"].get("nodeName"))


def until_refused(here, name, words):
    """Its condition, once it has these words, and the last event that has them too."""

    def told(items):
        return [item for item in items if words in (item.get("message") or item.get("note") or "")]

    found = here.until(here.core(f"pods/{name}"), lambda found: told(scheduled(found)))
    selector = f"involvedObject.name={name},reason=FailedScheduling"
    events = here.until_list(here.core("events"), told, fieldSelector=selector)
    return {"condition": scheduled(found), "event": told(events)[-1]["message"]}


def test_how_it_is_asked(here, extender, nodes):
    scores = dict(zip(nodes, (3, 9, 10), strict=True))
    extender.answers["filter"] = lambda asked: {"NodeNames": asked["NodeNames"], "FailedNodes": {}}
    extender.answers["prioritize"] = lambda asked: [{"Host": n, "Score": scores[n]} for n in asked["NodeNames"]]
    asking(here, "p")
    bound = until_bound(here, "p")
    here.see("where", bound["spec"]["nodeName"])
    here.see("with", bound["metadata"]["annotations"])
    for verb in ("filter", "prioritize", "bind"):
        (body,) = extender.about("p", verb)
        asked = dict(body)
        if asked.get("NodeNames"):
            asked["NodeNames"].sort()
        whole = asked.pop("Pod", {})
        here.see(verb, asked)
        here.see(f"{verb}: the pod", sorted(whole))
    here.made(here.core("pods"), here.pod("other"))
    until_bound(here, "other")
    here.see("a pod that asks for nothing of it", [body for _, body in extender.asked if "other" in str(body)])


def test_one_node_left(here, extender, nodes):
    extender.answers["filter"] = lambda asked: {
        "NodeNames": nodes[1:2],
        "FailedNodes": {nodes[0]: "no", nodes[2]: "no"},
    }
    asking(here, "p")
    here.see("where", until_bound(here, "p")["spec"]["nodeName"])
    here.see("is not prioritized", extender.about("p", "prioritize"))


def test_no_node_left(here, extender, nodes):
    extender.answers["filter"] = lambda asked: {
        "NodeNames": [],
        "FailedNodes": {nodes[0]: "no room", nodes[1]: "no room"},
        "FailedAndUnresolvableNodes": {nodes[2]: "no such GPU"},
    }
    asking(here, "p")
    here.see("refused", until_refused(here, "p", "no room"))


FAILURES = {
    "an error": lambda asked: {"Error": "it is broken"},
    "a status": lambda asked: None,
    "a node that was not asked about": lambda asked: {"NodeNames": ["nosuch"]},
    "no nodes at all": lambda asked: {"NodeNames": None},
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_filter_that_fails(here, extender, nodes, what):
    extender.answers["filter"] = FAILURES[what]
    asking(here, "p")
    here.see("refused", until_refused(here, "p", ""))
    extender.answers["filter"] = lambda asked: {"NodeNames": asked["NodeNames"]}
    here.patch(f"/api/v1/nodes/{nodes[0]}", {"metadata": {"labels": {"touched": "yes"}}})  # what wakes those that wait


def test_a_prioritize_that_fails(here, extender, nodes):
    """Is passed over."""
    extender.answers["prioritize"] = lambda asked: None
    asking(here, "p")
    here.see("bound", bool(until_bound(here, "p")))


def test_a_bind_that_fails(here, extender, nodes):
    well = extender.answers["bind"]
    extender.answers["bind"] = lambda asked: {"Error": "it is taken"}
    asking(here, "p")
    here.see("refused", until_refused(here, "p", "it is taken"))
    extender.answers["bind"] = well
    here.see("and tried again", bool(until_bound(here, "p")))


def test_nobody_there(here, cluster, nodes):
    here.normal.names[f"127.0.0.1:{cluster.extender_port}"] = "EXTENDER"
    asking(here, "p")
    here.see("refused", until_refused(here, "p", "refused"))
