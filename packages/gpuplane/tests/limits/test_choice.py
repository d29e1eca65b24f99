"""The choice of a GPU for a share, and the error if no GPU fits."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.hardware import MigMode
from gpuplane.limits import LimitRequest, choose, gib
from gpuplane.limits.facts import Share
from kubekit.errors import InvalidInput, KubekitError, Terminal
from tests.support.limits_examples import GIB, A, B, gpu, share

GPUS = (gpu(0), gpu(1, memory_gib=24))


@pytest.mark.parametrize(
    ("wanted", "shares", "index"),
    [
        pytest.param(LimitRequest(core=30), (), 1, id="the larger memory of two free ones"),
        pytest.param(LimitRequest(core=30), (share("a", uuid=B, core=10),), 0, id="most core left goes before memory"),
        pytest.param(LimitRequest(core=30, gpu="0"), (share("a", core=70),), 0, id="named by index, just enough"),
        pytest.param(LimitRequest(core=30, gpu=B), (), 1, id="named by UUID"),
        pytest.param(LimitRequest(memory_bytes=20 * GIB), (), 1, id="only one is large enough"),
        pytest.param(LimitRequest(core=60), (share("a", uuid=B, core=50), share("b", core=40)), 0, id="where it fits"),
        pytest.param(LimitRequest(core=100), (share("a", uuid=B, core=0),), 1, id="no limit is no promise"),
    ],
)
def test_the_gpu_with_the_most_room(wanted: LimitRequest, shares: tuple[Share, ...], index: int) -> None:
    assert choose(wanted, GPUS, shares).index == index


@pytest.mark.parametrize(
    ("wanted", "shares", "kind", "what", "cure"),
    [
        (LimitRequest(core=150), (), InvalidInput, "core 150 is not a part of one GPU", "1 to 100"),
        (LimitRequest(core=-1), (), InvalidInput, "core -1", "1 to 100"),
        (LimitRequest(), (), InvalidInput, "no limit is asked for", "--core 30"),
        (LimitRequest(memory_bytes=5), (), InvalidInput, "too little", "5GiB"),
        (LimitRequest(memory_bytes=60 * GIB), (), InvalidInput, "60 GiB is more memory than any GPU", "at most 24 GiB"),
        (LimitRequest(memory_bytes=20 * GIB, gpu="0"), (), InvalidInput, "than GPU 0 (Tesla T4) has", "at most 15 GiB"),
        (LimitRequest(core=30, gpu="7"), (), InvalidInput, "there is no GPU 7", "0 to 1"),
        (
            LimitRequest(core=60),
            (share("a", core=50), share("b", uuid=B, core=70)),
            Terminal,
            "no room for 60% core",
            "--core 50",
        ),
        (
            LimitRequest(core=10, memory_bytes=12 * GIB, gpu="0"),
            (share("a", core=10, memory=5 * GIB),),
            Terminal,
            "no room for 10% core and 12 GiB",
            "--memory 10240MiB",
        ),
        (LimitRequest(core=1, gpu="0"), (share("a", core=100),), Terminal, "no room", "another GPU"),
    ],
)
def test_what_cannot_be_is_refused_with_a_cure(
    wanted: LimitRequest, shares: tuple[Share, ...], kind: type[KubekitError], what: str, cure: str
) -> None:
    with pytest.raises(kind) as caught:
        choose(wanted, GPUS, shares)
    assert type(caught.value) is kind
    assert what in caught.value.what and cure in caught.value.cure


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        choose(LimitRequest(core=150, memory_bytes=5), GPUS, ())
    assert len(caught.value.findings) == 1


def test_a_machine_without_gpus_is_told_what_to_do() -> None:
    with pytest.raises(Terminal, match="no GPU") as caught:
        choose(LimitRequest(core=30), (), ())
    assert "--simulate" in caught.value.cure


@pytest.mark.parametrize(
    ("size", "text"), [(5 * GIB, "5 GiB"), (int(4.1 * GIB), "4.1 GiB"), (300 << 20, "300 MiB"), (0, "0 MiB")]
)
def test_memory_for_people(size: int, text: str) -> None:
    assert gib(size) == text


def test_a_gpu_in_mig_mode_is_not_shared_again() -> None:
    divided = msgspec.structs.replace(gpu(0), mig=MigMode.ENABLED)
    assert choose(LimitRequest(core=30), (divided, GPUS[1]), ()).index == 1
    with pytest.raises(Terminal, match="MIG mode"):
        choose(LimitRequest(core=30, gpu="0"), (divided, GPUS[1]), ())


def test_a_share_elsewhere_holds_nothing_here() -> None:
    assert choose(LimitRequest(core=100), GPUS[:1], (share("a", uuid=B, core=100),)).uuid == A
