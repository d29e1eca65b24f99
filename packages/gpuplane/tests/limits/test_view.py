"""Shares as people and metrics see them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuplane.hardware import Sample
from gpuplane.limits import Escape, GpuView, share_metrics, views
from gpuplane.limits.exposition import METRICS
from gpuplane.limits.facts import Observation, Share, Totals
from kubekit.kube.exposition import exposition
from tests.support.limits_examples import GIB, A, B, gpu, share, slot


def at(seconds: float, *shares: Share) -> Observation:
    return Observation(at_ns=int(seconds * 1e9), shares=shares)


def used(gpu_s: float, waited_s: float = 0.0, refused: int = 0) -> Totals:
    return Totals(gpu_ns=int(gpu_s * 1e9), held_back_ns=int(waited_s * 1e9), refused=refused)


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = at(10, share("a", totals=used(5.0, 1.0)))
    seen = at(12, share("a", slot(7, held=4 * GIB, other=GIB), totals=used(5.6, 1.8, 12)))
    [view] = views([gpu(0)], {A: Sample(uuid=A, gpu_percent=49)}, before, seen)
    [row] = view.shares
    assert view.busy_percent == 49 and view.held_percent == 30
    assert row.core_percent is not None and round(row.core_percent, 3) == 30.0
    assert row.held_back_percent is not None and round(row.held_back_percent, 3) == 40.0
    assert (row.refused, row.memory_bytes, row.gpu_seconds) == (12, 5 * GIB, 5.6)


def test_the_first_look_and_a_new_share_of_the_same_id_have_no_rates() -> None:
    seen = at(12, share("a", totals=used(5.6)))
    assert views([gpu(0)], {}, None, seen)[0].shares[0].core_percent is None
    before = at(10, msgspec.structs.replace(share("a", totals=used(50)), tenant=2))
    assert views([gpu(0)], {}, before, seen)[0].shares[0].core_percent is None


def test_shares_are_shown_at_their_gpus_by_name_and_escapes_with_them() -> None:
    seen = at(1, share("b"), share("a"), share("c", uuid=B))
    escapes = [Escape(A, 8812, 1, GIB, "python", "b"), Escape(B, 9, 1, GIB, "x")]
    first, second = views([gpu(0), gpu(1)], {}, None, seen, escapes)
    assert [row.name for row in first.shares] == ["a", "b"] and first.held_percent == 60
    assert [(o.pid, o.name) for o in first.outside] == [(8812, "b")]
    assert [row.name for row in second.shares] == ["c"] and [o.pid for o in second.outside] == [9]


def text_of(gpus: Sequence[GpuView]) -> str:
    return exposition(share_metrics(gpus)).decode()


def test_metrics_have_a_line_for_each_share_and_what_is_no_limit_is_left_out() -> None:
    seen = at(1, share("a", memory=0, totals=used(1.5, 0.25, 3)))
    text = text_of(views([gpu(0)], {}, None, seen))
    labels = f'gpu="0",UUID="{A}",share="a"'
    assert f"gpuplane_share_core_limit_percent{{{labels}}} 30\n" in text
    assert f"gpuplane_share_gpu_seconds_total{{{labels}}} 1.5\n" in text
    assert f"gpuplane_share_held_back_seconds_total{{{labels}}} 0.25\n" in text
    assert f"gpuplane_share_refused_total{{{labels}}} 3\n" in text
    assert "gpuplane_share_memory_limit_bytes{" not in text and "gpuplane_share_core_percent{" not in text
    assert all(f"# TYPE {metric.name} {metric.type}\n" in text for metric in METRICS)
    assert all((metric.type == "counter") == metric.name.endswith("_total") for metric in METRICS)


def test_pods_are_named_as_elsewhere() -> None:
    named = share("a")
    owner = msgspec.structs.replace(named.owner, namespace="ml", pod='we"ird', container="main")
    text = text_of(views([gpu(0)], {}, None, at(1, msgspec.structs.replace(named, owner=owner))))
    assert 'namespace="ml",pod="we\\"ird",container="main"' in text and "share=" not in text
