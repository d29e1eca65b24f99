"""A user of one namespace writes pods and annotations: no text of theirs ends the decision about all nodes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api import nodeclaim
from gpuplane.autoscaler.disruption.observe import DELETION_COST_ANNOTATION, weigh_pod, why_held
from gpuplane.autoscaler.termination.observe import drain_pod, hold_end
from kubekit.api.core import Pod, PodSpec, PodStatus
from kubekit.api.meta import ObjectMeta

NOW = 1_795_000_000.0


def pod(annotations: dict[str, str] | None = None, *, deleted: str = "", priority: int = 0) -> Pod:
    meta = ObjectMeta(
        name="p",
        namespace="ml",
        uid="u",
        annotations=annotations or {},
        creation_timestamp="2026-11-18T11:06:40Z",
        deletion_timestamp=deleted,
    )
    return Pod(metadata=meta, spec=PodSpec(priority=priority), status=PodStatus())


texts = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"-?[0-9]{1,400}(h|m|s|ms)?", fullmatch=True),
    st.sampled_from(["true", "True", "9" * 400, "9" * 5000, "9" * 400 + "h", "0" * 400 + "h", "٣", "nan", "1e999h"]),
)


@given(text=texts, priority=st.integers(-(2**31), 2**31 - 1))
def test_any_annotation_has_a_finite_cost_and_an_end(text: str, priority: int) -> None:
    names = (DELETION_COST_ANNOTATION, nodeclaim.DO_NOT_DISRUPT, nodeclaim.DO_NOT_EVICT)
    written = pod(dict.fromkeys(names, text), priority=priority)
    weight = weigh_pod(written, {}, NOW)
    assert -10.0 <= weight.cost <= 10.0
    assert not math.isnan(hold_end(written))
    assert drain_pod(written).held_until == hold_end(written)


@pytest.mark.parametrize("name", [nodeclaim.DO_NOT_DISRUPT, nodeclaim.DO_NOT_EVICT])
def test_the_annotation_is_called_by_the_name_that_the_pod_has(name: str) -> None:
    assert why_held(pod({name: "true"}), {}, NOW) == f"pod ml/p has {name}"


def test_a_pod_that_leaves_already_holds_its_node_no_more() -> None:
    leaving = pod({nodeclaim.DO_NOT_DISRUPT: "true"}, deleted="2026-11-18T11:06:41Z")
    assert why_held(leaving, {}, NOW) == ""


def test_a_duration_holds_from_the_start_of_the_pod() -> None:
    held = pod({nodeclaim.DO_NOT_DISRUPT: "1h"})
    assert why_held(held, {}, NOW + 3599.0) and not why_held(held, {}, NOW + 3601.0)
