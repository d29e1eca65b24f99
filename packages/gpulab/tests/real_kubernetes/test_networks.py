"""Two clusters that begin at the same moment have networks of their own."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpulab.kubernetes import networks


def test_clusters_that_begin_together_have_networks_of_their_own(tmp_path: Path) -> None:
    claims, places = tmp_path / "claims.json", [tmp_path / str(number) for number in range(16)]
    with ThreadPoolExecutor(len(places)) as pool:
        taken = list(pool.map(lambda place: networks.take(place, claims), places))
    assert len(set(taken)) == len(places)


def test_the_network_of_a_cluster_that_is_gone_is_free_again(tmp_path: Path) -> None:
    claims, first = tmp_path / "claims.json", tmp_path / "first"
    number = networks.take(first, claims)
    assert networks.take(tmp_path / "second", claims) != number
    shutil.rmtree(first)
    assert networks.take(tmp_path / "third", claims) == number


def test_a_cluster_that_asks_again_has_one_network(tmp_path: Path) -> None:
    claims, first = tmp_path / "claims.json", tmp_path / "first"
    assert networks.take(first, claims) == networks.take(first, claims)


def test_a_record_that_is_no_record_is_begun_again(tmp_path: Path) -> None:
    claims = tmp_path / "claims.json"
    claims.write_text("{")
    assert networks.take(tmp_path / "first", claims) in networks.NUMBERS
