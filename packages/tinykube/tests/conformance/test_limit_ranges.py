"""LimitRanges: defaults for what containers do not say, and the refusal of what is out of bounds."""

from __future__ import annotations

import time

from tests.support.anycluster.api import PATIENCE_S


def ranges(here):
    return here.core("limitranges")


def limit_range(name, *limits):
    return {"metadata": {"name": name}, "spec": {"limits": list(limits)}}


def asking(here, name, *resources, init=(), **spec):
    """A pod with a container for each of `resources`, and an init container for each of `init`."""
    lists = {"containers": ("c", resources), "initContainers": ("i", init)}
    made = {
        field: [{"name": f"{word}{at}", "image": "i", "resources": more} for at, more in enumerate(given)]
        for field, (word, given) in lists.items()
        if given
    }
    return here.pod(name, schedulerName="nobody", **made, **spec)


def until_known(here, pod, status):
    """Returns when the API server, which checks with a copy, knows the ranges: when `pod` has this status."""
    deadline = time.monotonic() + PATIENCE_S
    while here.create(here.core("pods"), pod, dryRun="All").status != status and time.monotonic() < deadline:
        pass


def resources_of(answer):
    pod = answer.body
    spec = pod["spec"]
    found = {c["name"]: c["resources"] for c in [*spec.get("initContainers", ()), *spec["containers"]]}
    return found, pod["metadata"].get("annotations")


def test_defaults(here):
    item = {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "250m"}}
    item["max"] = {"ephemeral-storage": "1Gi"}
    here.see("made", here.create(ranges(here), limit_range("d", item)))
    pods = here.core("pods")
    until_known(here, asking(here, "p", {"limits": {"ephemeral-storage": "2Gi"}}), 403)
    silent = asking(here, "silent", {}, {"requests": {"cpu": "100m"}}, init=({"limits": {"memory": "2Gi"}},))
    here.see("filled in", resources_of(here.create(pods, silent)))
    said = {"cpu": "100m", "memory": "1Mi", "ephemeral-storage": "1Mi"}
    here.see("all said", resources_of(here.create(pods, asking(here, "said", {"requests": said, "limits": said}))))


def test_bounds(here):
    container = {"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "2", "nvidia.com/gpu": "2"}}
    whole = {"type": "Pod", "max": {"cpu": "3"}, "min": {"memory": "1Mi"}}
    ratio = {"type": "Container", "maxLimitRequestRatio": {"memory": "2"}}
    here.see("made", here.create(ranges(here), limit_range("b", container, whole)))
    pods = here.core("pods")
    base = {"memory": "10Mi", "cpu": "500m", "nvidia.com/gpu": "1"}

    def pod(name, **changes):
        return asking(here, name, {"requests": base | changes, "limits": base | changes})

    until_known(here, pod("p", cpu="5"), 403)
    here.see("too much", here.create(pods, pod("much", cpu="2500m")))
    here.see("too little", here.create(pods, pod("little", cpu="50m")))
    here.see("too many GPUs", here.create(pods, pod("gpus", **{"nvidia.com/gpu": "3"})))
    two = {"requests": base | {"cpu": "1600m"}, "limits": base | {"cpu": "1600m"}}
    here.see("together", here.create(pods, asking(here, "together", two, two)))
    here.see(
        "nothing said of memory",
        here.create(pods, asking(here, "nothing", {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}})),
    )
    here.see("fits", here.create(pods, pod("fits")).status)
    here.made(ranges(here), limit_range("ratio", ratio))
    apart = {"requests": base, "limits": base | {"memory": "25Mi"}}
    until_known(here, asking(here, "p", apart), 403)
    here.see("apart", here.create(pods, asking(here, "apart", apart)))
    here.see(
        "near", here.create(pods, asking(here, "near", {"requests": base, "limits": base | {"memory": "20Mi"}})).status
    )
    unsaid = {key: value for key, value in base.items() if key != "memory"}
    here.see("no limit", here.create(pods, asking(here, "unsaid", {"requests": base, "limits": unsaid})))


def test_wrong_ranges(here):
    wrong = {
        "min over max": {"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}},
        "default over max": {"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "1"}},
        "default under min": {"type": "Container", "default": {"cpu": "1"}, "min": {"cpu": "2"}},
        "request over default": {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}},
        "request under min": {"type": "Container", "defaultRequest": {"cpu": "1"}, "min": {"cpu": "2"}},
        "ratio below one": {"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}},
        "ratio over bounds": {
            "type": "Container",
            "min": {"cpu": "1"},
            "max": {"cpu": "2"},
            "maxLimitRequestRatio": {"cpu": "3"},
        },
        "default of a pod": {"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}},
        "a claim without bounds": {"type": "PersistentVolumeClaim", "max": {"cpu": "1"}},
        "an unknown resource": {"type": "Container", "max": {"gpus": "1"}},
    }
    for what, item in wrong.items():
        here.see(what, here.create(ranges(here), limit_range("w", item)))
    here.see("twice", here.create(ranges(here), limit_range("w", {"type": "Pod"}, {"type": "Pod"})))
    here.see("nothing", here.create(ranges(here), limit_range("w")).status)


def test_claims(here):
    item = {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}
    here.made(ranges(here), limit_range("c", item))
    claims = here.core("persistentvolumeclaims")

    def claim(name, size):
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        return {"metadata": {"name": name}, "spec": spec}

    deadline = time.monotonic() + PATIENCE_S
    while here.create(claims, claim("a", "9Gi"), dryRun="All").status != 403 and time.monotonic() < deadline:
        pass
    here.see("too large", here.create(claims, claim("a", "3Gi")))
    here.see("too small", here.create(claims, claim("a", "1Mi")))
    here.see("fits", here.create(claims, claim("a", "1Gi")).status)
