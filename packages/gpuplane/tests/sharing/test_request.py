"""Requests of pods, in every dialect, as Kubernetes counts them; and requests that can never run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.codes import CODES
from gpuplane.sharing import Request, findings, findings_of_object, kind_of, matches, request_of
from kubekit.errors import InvalidInput
from tests.support.sharing_examples import container, init, pod, sidecar


def asks(request: Request) -> list[tuple[str, int, int, str]]:
    return [(ask.container, ask.core, ask.memory_mib, ask.dialect) for ask in request.asks]


def test_every_dialect_becomes_the_same_ask() -> None:
    asked = request_of(
        pod(
            container("a", gpu=2),
            container("b", core="30", units="20"),
            container("none", cpu="4"),
            container("c", alpha=1),
            container("d", core=200),
        )
    )
    assert asks(asked) == [
        ("a", 200, 0, names.GPU_RESOURCE),
        ("b", 30, 5120, names.VCUDA_CORE),
        ("c", 100, 0, names.ALPHA_GPU),
        ("d", 200, 0, names.VCUDA_CORE),
    ]
    assert [ask.position for ask in asked.asks] == [0, 1, 3, 4]


def test_a_pod_that_asks_none_is_false() -> None:
    assert not request_of(pod(container("a", cpu="4"), container("b", gpu=0, core="0")))


def test_init_containers_take_turns_and_sidecars_stay() -> None:
    asked = request_of(
        pod(
            container("main", core=40, units=4),
            first=(init("early", gpu=1), sidecar("beside", core=20, units=4), init("late", core=70, units=4)),
        )
    )
    assert [[ask.container for ask in phase] for phase in asked.phases()] == [
        ["beside", "main"],
        ["early"],
        ["beside", "late"],
    ]
    assert asked.core == 100


def test_a_request_is_read_once_for_all_pods_that_ask_the_same() -> None:
    assert request_of(pod(container("a", gpu=1))) is request_of(pod(container("a", gpu=1)))


def test_pods_that_differ_in_one_place_have_requests_of_their_own() -> None:
    different = [
        pod(container("a", gpu=1)),
        pod(container("b", gpu=1)),
        pod(container("a", gpu=1), container("none")),
        pod(container("a", gpu=1, cpu="4")),
        pod(container("a", gpu=1), first=(init("i", gpu=1),)),
        pod(container("a", gpu=1), first=(sidecar("i", gpu=1),)),
        pod(container("a", gpu=1), container("i", gpu=1)),
        pod(container("a", gpu=1), **{names.GPU_POLICY_ANNOTATION: "spread"}),
    ]
    found = [request_of(one) for one in different]
    assert [len(request.asks) for request in found] == [1, 1, 1, 1, 2, 2, 2, 1]
    assert [request.core for request in found] == [100, 100, 100, 100, 100, 200, 200, 100]
    assert [request.cpu_milli for request in found] == [0, 0, 0, 4000, 0, 0, 0, 0]
    assert [request.gpu_policy for request in found] == [""] * 7 + ["spread"]
    assert found[0] != found[1]


def test_memory_of_a_whole_gpu_is_not_counted() -> None:
    assert request_of(pod(container("a", core=100, units=3))).asks[0].memory_mib == 0


def test_what_the_node_gives_beside_gpus() -> None:
    asked = request_of(
        pod(container("a", gpu=1, cpu="1500m", memory="1Gi"), first=(init("i", cpu="4"), sidecar("s", cpu=1)))
    )
    assert (asked.cpu_milli, asked.host_memory_mib) == (4000, 1024)


@pytest.mark.parametrize(
    ("limits", "requests", "code", "says"),
    [
        ({"core": "150"}, {}, "GP201", '"100" or "200"'),
        ({"core": "220", "units": 8}, {}, "GP201", '"200" or "300"'),
        ({"core": "9999999900"}, {}, "GP201", "more than any node has"),
        ({"gpu": "1e999999999"}, {}, "GP201", "more than any node has"),
        ({"gpu": "500m"}, {}, "GP202", "no whole number"),
        ({"gpu": -1}, {}, "GP202", "no whole number"),
        ({"core": "many"}, {}, "GP202", "no whole number"),
        ({}, {names.GPU_RESOURCE: 1}, "GP203", "requests alone"),
        ({"gpu": 2}, {names.GPU_RESOURCE: 1}, "GP203", "not the limit"),
        ({"units": 4}, {}, "GP204", "without any of its core"),
        ({"gpu": 1, "core": 30}, {}, "GP205", "the same GPUs"),
    ],
)
def test_what_can_never_run_is_refused_with_a_code_and_a_cure(
    limits: dict[str, str | int], requests: dict[str, int], code: str, says: str
) -> None:
    asking = container("a", **limits)
    asking["resources"]["requests"] = requests
    [finding] = findings(pod(asking))
    assert finding.code == code
    assert code in CODES
    assert says in f"{finding.message} {finding.cure}"
    with pytest.raises(InvalidInput) as raised:
        request_of(pod(asking))
    assert raised.value.findings[0].startswith(code)


def test_all_findings_come_at_once() -> None:
    asking = pod(container("a", core=150), container("b", units=1), **{names.GPU_POLICY_ANNOTATION: "best"})
    assert [finding.code for finding in findings(asking)] == ["GP206", "GP201", "GP204"]


def test_annotations_choose_policy_model_and_gpus() -> None:
    said = {
        names.NODE_POLICY_ANNOTATION: "spread",
        names.HAMI_NODE_POLICY_ANNOTATION: "binpack",
        names.HAMI_GPU_POLICY_ANNOTATION: "topology-aware",
        names.GPU_MODELS_ANNOTATION: "H100, A100",
        names.HAMI_NOT_GPU_UUIDS_ANNOTATION: "GPU-1",
    }
    asked = request_of(pod(container("a", gpu=1), **said))
    assert (asked.node_policy, asked.gpu_policy) == ("spread", "topology")
    assert (asked.models, asked.not_uuids) == (("A100", "H100"), ("GPU-1",))


def test_a_uuid_that_is_none_is_found() -> None:
    [finding] = findings(pod(container("a", gpu=1), **{names.GPU_UUIDS_ANNOTATION: "GPU-1,0"}))
    assert finding.code == "GP207"


LIST_ANNOTATIONS = (
    names.GPU_MODELS_ANNOTATION,
    names.NOT_GPU_MODELS_ANNOTATION,
    names.GPU_UUIDS_ANNOTATION,
    names.NOT_GPU_UUIDS_ANNOTATION,
    names.HAMI_GPU_MODELS_ANNOTATION,
    names.HAMI_NOT_GPU_MODELS_ANNOTATION,
    names.HAMI_GPU_UUIDS_ANNOTATION,
    names.HAMI_NOT_GPU_UUIDS_ANNOTATION,
)


@pytest.mark.parametrize("name", LIST_ANNOTATIONS)
@pytest.mark.parametrize("text", [",".join(["GPU-1"] * 257), "GPU-" + "1" * 16_384])
def test_a_list_that_is_too_long_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        request_of(pod(container("a", gpu=1), **{name: text}))
    [finding] = raised.value.findings
    assert finding.startswith("GP211")
    assert "GP211" in CODES


@pytest.mark.parametrize("name", LIST_ANNOTATIONS)
def test_a_list_of_256_uuids_is_read(name: str) -> None:
    uuids = [f"GPU-7c41d0a3-9f0e-4c7b-8c4e-{number:012x}" for number in range(256)]
    asked = request_of(pod(container("a", gpu=1), **{name: ", ".join(uuids)}))
    assert set(asked.models + asked.not_models + asked.uuids + asked.not_uuids) == set(uuids)


def test_the_findings_of_an_annotation_of_256_kib_stay_small() -> None:
    # 34 s and gigabytes in the scheduler, for its lease long enough to be lost: every entry's finding had all the text.
    asking = pod(container("a", gpu=1), **dict.fromkeys(LIST_ANNOTATIONS, "0," * 2**17))
    assert len(findings(asking)) == len(LIST_ANNOTATIONS)
    asking = pod(container("a", gpu=1), **{names.GPU_POLICY_ANNOTATION: "x" * 2**18})
    with pytest.raises(InvalidInput) as raised:
        request_of(asking)
    assert sum(map(len, raised.value.findings)) < 1000


@pytest.mark.parametrize(
    ("model", "wanted", "same"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA-A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb", True),
        ("Tesla K80", "Tesla-K80", True),
        ("Tesla T4", "H100", False),
    ],
)
def test_models_match_by_words(model: str, wanted: str, same: bool) -> None:
    assert matches(model, wanted) is same


def test_a_workload_is_judged_by_its_template() -> None:
    template = {"spec": {"containers": [container("a", core="150")]}}
    [finding] = findings_of_object({"kind": "Deployment", "spec": {"template": template}})
    assert finding.path == f"spec.template.spec.containers[0].resources.limits.{names.VCUDA_CORE}"
    cron = {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}}
    assert findings_of_object(cron)[0].path.startswith("spec.jobTemplate.spec.template.spec.containers[0]")
    assert findings_of_object({"kind": "Service", "spec": {"template": template}}) == []


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "kind",
                        "spec",
                        "template",
                        "metadata",
                        "annotations",
                        "containers",
                        "resources",
                        "limits",
                        names.VCUDA_CORE,
                    ]
                ),
                x,
            )
        ),
    )
)
def test_no_manifest_breaks_the_check(data: object) -> None:
    findings_of_object({"kind": "Deployment", "spec": data} if not isinstance(data, dict) else {**data, "kind": "Pod"})


counts = st.sampled_from([0, 10, 50, 99, 100, 300])


@given(st.lists(counts, max_size=3), st.lists(st.tuples(counts, st.booleans()), max_size=4))
def test_the_most_held_at_once_is_what_kubernetes_counts(mains: list[int], firsts: list[tuple[int, bool]]) -> None:
    asking = pod(
        *(container(f"m{number}", core=core) for number, core in enumerate(mains)),
        first=tuple(
            (sidecar if stays else init)(f"i{number}", core=core) for number, (core, stays) in enumerate(firsts)
        ),
    )
    sidecars = most = 0
    for core, stays in firsts:
        most = max(most, sidecars + core)
        sidecars += core if stays else 0
    assert request_of(asking).core == max(most, sidecars + sum(mains))


def test_equal_limits_and_requests_are_as_gpu_manager_s_users_write_them() -> None:
    asking = container("a", core="30", units="20")
    asking["resources"]["requests"] = dict(asking["resources"]["limits"])
    assert findings(pod(asking)) == []


def test_requests_of_one_kind_differ_in_names_alone() -> None:
    one, other = (request_of(pod(container(name, core=200), container("x"))) for name in ("a", "b"))
    whole = request_of(pod(container("a", gpu=2)))
    assert one != other
    assert kind_of(one) == kind_of(other) == kind_of(whole)
    assert kind_of(one) != kind_of(request_of(pod(container("a", gpu=1))))
    assert kind_of(one) != kind_of(request_of(pod(container("a", gpu=2), **{names.GPU_MODELS_ANNOTATION: "T4"})))
