"""Places for actors on a cluster's nodes, machines that are compared, and builds on their way: without Ray."""

import io
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.machine import parts_of_cpus
from kernelwright.kernelbench.remote.cluster.evaluator import of_one_kind
from kernelwright.kernelbench.remote.cluster.nodes import RESOURCE, SlotPlace, attach, places_among
from kernelwright.kernelbench.remote.cluster.slot import ClusterSlot, SlotInfo, packed, unpack
from kernelwright.kernelbench.remote.options import cluster_target
from tests.helpers.results.run_factory import ENVIRONMENT, TARGET


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "Resources": resources}


def told(places: list[SlotPlace]) -> list[tuple[str, float, int, bool]]:
    return [(place.node, place.cpus, place.gpus, place.timed) for place in places]


def test_on_the_cpu_each_node_is_timed_once() -> None:
    nodes = [node("1", CPU=8.0), node("2", CPU=16.0), node("3")]
    assert told(places_among(nodes, "cpu")) == [("1", 8.0, 0, True), ("2", 16.0, 0, True)]


def test_each_gpu_is_timed_with_its_part_of_the_cpus() -> None:
    nodes = [node("1", CPU=8.0), node("2", CPU=16.0, GPU=2.0)]
    assert told(places_among(nodes, "cuda:0")) == [("2", 8.0, 1, True), ("2", 8.0, 1, True)]


def test_where_nodes_offer_to_be_timed_others_are_not() -> None:
    nodes = [node("1", CPU=8.0), node("2", CPU=8.0, **{RESOURCE: 1.0}), node("3", GPU=4.0, CPU=4.0)]
    assert told(places_among(nodes, "cpu")) == [
        ("1", 8.0, 0, False),
        ("2", 8.0, 0, True),
        ("3", 4.0, 0, False),
    ]
    gpus = [node("1", GPU=2.0, CPU=2.0), node("2", GPU=2.0, CPU=2.0, **{RESOURCE: 1.0})]
    assert told(places_among(gpus, "cuda:0")) == [("2", 2.0, 1, True)]


def test_a_cluster_without_room() -> None:
    with pytest.raises(UsageError, match="has no GPU to time on, on 1 node — see `ray status`"):
        places_among([node("1", CPU=8.0)], "cuda:0")


def test_slots_have_names_of_their_own() -> None:
    assert [place.number for place in places_among([node("1", GPU=2.0, CPU=4.0)], "cuda:0")] == [0, 1]


def test_slots_of_one_node_share_its_cpus() -> None:
    """Affinity and priority are a thread's, and its processes inherit them."""
    found: list[set[int]] = []

    @contextmanager
    def start() -> Iterator[Any]:
        found.append(os.sched_getaffinity(0))
        yield SimpleNamespace(pool=None, evaluator=None)

    for number in range(2):
        thread = threading.Thread(target=ClusterSlot, args=(start, number, 2))
        thread.start()
        thread.join()
    assert found == [set(part) for part in parts_of_cpus(2)]


def started(name: str, chip: str = "", machine: str = "", timed: bool = True) -> tuple[Any, SlotInfo]:
    place = SlotPlace(name, f"10.0.0.{name}", 8.0, timed=timed)
    target = TARGET
    if chip:
        mark = TARGET.fingerprint.model_copy(update={"chip": chip})
        target = TARGET.model_copy(update={"fingerprint": mark})
    info = SlotInfo(version="1", machine=machine or name, target=target, environment=ENVIRONMENT, slots=1)
    return SimpleNamespace(name=f"node {name}", place=place), info


def test_machines_are_not_mixed() -> None:
    said: list[str] = []
    every = [started("1", "Z80"), started("2"), started("3"), started("4", "Z80", timed=False)]
    every += [started("5", timed=False)]
    timed, builders = of_one_kind(every, None, said.append)
    assert [handle.name for handle, _ in timed] == ["node 2", "node 3"]
    assert [handle.name for handle in builders] == ["node 5"]  # what it builds is for that chip
    assert said == ["node 1 is left out: its chip is Z80, not Testium 9000"]


def test_a_run_goes_on_where_it_was_measured() -> None:
    every = [started("1", "Z80"), started("2"), started("3")]
    recorded = every[0][1].target
    timed, _ = of_one_kind(every, recorded, pytest.fail)
    assert [handle.name for handle, _ in timed] == ["node 1"]
    with pytest.raises(UsageError, match="no node of the cluster is what this run was measured on"):
        of_one_kind(every[1:], recorded, pytest.fail)


def test_two_nodes_on_one_machine_would_disturb_each_other() -> None:
    said: list[str] = []
    every = [started("1", machine="m"), started("2", machine="m"), started("3", machine="m", timed=False)]
    timed, builders = of_one_kind(every, None, said.append)
    assert len(timed) == 1 and builders == []
    assert said == ["node 2 is left out: node 1 is on the same machine, which is timed"]


def test_a_build_goes_from_one_node_to_another(tmp_path: Path) -> None:
    (tmp_path / "one" / "ab").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "ab" / "kernel.so").write_bytes(b"\x7fELF")
    build = packed(tmp_path / "one")
    assert build is not None
    unpack(build, tmp_path / "two")
    assert (tmp_path / "two" / "ab" / "kernel.so").read_bytes() == b"\x7fELF"
    (tmp_path / "two" / "ab" / "kernel.so").write_bytes(b"own")
    unpack(build, tmp_path / "two")  # which has one
    assert (tmp_path / "two" / "ab" / "kernel.so").read_bytes() == b"own"
    (tmp_path / "none").mkdir()
    assert packed(tmp_path / "none") is None


def test_a_build_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, kind, link in (("../out", tarfile.REGTYPE, ""), ("link", tarfile.SYMTYPE, "/etc/passwd")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            archive.addfile(member)
    (tmp_path / "builds").mkdir()
    unpack(written.getvalue(), tmp_path / "builds")
    assert [path.name for path in tmp_path.iterdir()] == ["builds"]
    assert not os.path.lexists(tmp_path / "builds" / "link")


def test_addresses_that_are_none() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    for bad in ("gpu7", "ray://gpu7:10001", "gpu7:port"):
        with pytest.raises(UsageError, match="is no address of a cluster's head — give HOST:6379"):
            attach(bad)
    with pytest.raises(UsageError, match=r"no Ray cluster at 127\.0\.0\.1:9 .* — start one with `ray start"):
        attach("127.0.0.1:9")


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingPrerequisite, match=r"--cluster needs Ray — pip install 'kernelwright\[cluster\]'"
    ):
        attach("auto")


def test_options_that_contradict() -> None:
    both = EvaluationOptions(servers=("http://gpu7:8900",), cluster="auto")
    with pytest.raises(UsageError, match="--cluster and --evaluator are two places to evaluate"):
        both.resolved()
    with pytest.raises(UsageError, match=r"--target cuda:0-3 names GPUs of one machine"):
        cluster_target("auto", "cuda:0-3")
