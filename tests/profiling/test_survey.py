"""What a machine can do at best: which numbers belong to which level, the loops, and one that is measured."""

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench import jit, machine_cache
from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError, UsageError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import fingerprint, physical_threads
from kernelwright.kernelbench.records import Ceilings
from kernelwright.profiling.cli import doctor, profile
from kernelwright.profiling.survey import cpu, gpu, measuring
from kernelwright.profiling.survey.measuring import Step, StepResult
from kernelwright.profiling.survey.records import Cache, Survey
from kernelwright.profiling.survey.wording import in_words, not_measured, scaled
from tests.helpers.profiling.surveys import CACHES, FINGERPRINT, GIGABYTES_S, SURVEY, TARGET

FLAGS = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()


def test_a_level_is_known_by_the_working_sets_that_lie_in_it_alone() -> None:
    """64 KiB and 1 MiB lie in two levels each, and say nothing of either."""
    levels = {level.name: level for level in SURVEY.levels()}
    assert {name: level.bandwidths["copy"] for name, level in levels.items()} == {
        "L1": 400e9,
        "L2": 200e9,
        "memory": 21e9,
    }
    assert levels["memory"].best == "read" and levels["memory"].bytes_s == pytest.approx(31.5e9)
    assert [each.working_set_bytes >> 10 for each in SURVEY.curve("read")] == sorted(GIGABYTES_S)


def test_caches_are_counted_once_for_those_that_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cores with two hyperthreads each; the last level is everyone's. This process may use three CPUs."""
    for number, core in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        for index, (kind, level, size, shared) in enumerate(
            (
                ("Data", "1", "32K", core),
                ("Instruction", "1", "64K", core),
                ("Unified", "2", "1024K", core),
                ("Unified", "3", "16M", "0-3"),
            )
        ):
            folder = tmp_path / f"cpu{number}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("type", kind), ("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert measuring.caches_together(tmp_path) == (
        Cache(name="L1", bytes=64 << 10),
        Cache(name="L2", bytes=2 << 20),
        Cache(name="L3", bytes=16 << 20),
    )


def test_working_sets_go_from_the_first_cache_to_beyond_the_last() -> None:
    steps = list(measuring.steps(TARGET, CACHES))
    reads = [step.working_set_bytes for step in steps if step.name == "read"]
    assert reads == [(16 << 10) << number for number in range(9)]  # to 4 MiB
    assert len(set(steps)) == len(steps)
    streaming = {(step.name, step.working_set_bytes) for step in steps if step.streaming}
    assert streaming == {(kind, size << 20) for kind in ("copy", "triad") for size in (2, 4)}


def test_on_a_gpu_there_is_no_choice_of_stores_and_no_loop_of_our_own() -> None:
    steps = list(measuring.steps(TARGET.model_copy(update={"device": "cuda:0"}), CACHES))
    assert not any(step.streaming or step.do == "vector units" for step in steps)
    assert {step.name for step in steps if step.do == "matmul"} >= {"fp32", "tf32", "bf16", "fp16"}


def test_the_worker_knows_every_step_by_its_name() -> None:
    for device, known in (("cpu", cpu._OVERHEADS), ("cuda:0", gpu._OVERHEADS)):
        steps = measuring.steps(TARGET.model_copy(update={"device": device}), CACHES)
        assert [step.name for step in steps if step.do == "overhead"] == list(known)


def test_the_best_of_several_rounds_counts() -> None:
    rate, cost = Step(do="matmul", name="fp32"), Step(do="overhead", name="barrier")
    one, two, none = StepResult(value=1.0), StepResult(value=2.0), StepResult()
    assert two.better(rate, one) and not one.better(rate, two)
    assert one.better(cost, two) and not two.better(cost, one)
    assert one.better(cost, none) and not none.better(cost, one)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cpu.CpuBench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWRIGHT_CACHE", str(tmp_path_factory.mktemp("build")))
        yield cpu.CpuBench()


def test_trials_in_which_threads_took_turns_count_only_where_there_are_no_others() -> None:
    some = itertools.cycle([-9e9, -8e9, 5e9, 5.1e9])
    assert cpu._best(lambda: next(some), max) == 5.1e9
    assert cpu._best(lambda: -3e9, max) == 3e9


def test_trials_go_on_until_the_two_best_are_alike() -> None:
    """The first ones were interrupted, each in another way."""
    some = itertools.chain(
        (1e-6 * (2 + number) ** 2 for number in reversed(range(40))), itertools.repeat(1e-6)
    )

    def trial() -> float:
        time.sleep(0.002)
        return next(some)

    assert cpu._best(trial, min) == 1e-6


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 1001])
def test_the_loops_move_all_that_they_are_timed_for(
    bench: cpu.CpuBench, blocks: int, streaming: bool
) -> None:
    loops: jit.CppLibrary = bench._loops
    a, b, c, d = (cpu._array(blocks, number) for number in range(4))
    a.copy_(torch.rand(a.numel()))
    b.copy_(torch.rand(b.numel()))
    c.zero_(), d.zero_()
    assert loops.copy(a, c, blocks, 1, streaming) != 0
    assert torch.equal(a, c)
    assert loops.triad(a, b, d, blocks, 2, streaming) != 0
    torch.testing.assert_close(d, a + 0.5 * b)
    loops.fill(a, blocks)
    assert (a == 1).all()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names of x86's instruction sets")
def test_vector_units_are_measured_where_the_cpu_has_them(bench: cpu.CpuBench) -> None:
    has = {
        "fp32": True,
        "fp16": "avx512_fp16" in FLAGS,
        "bf16": "avx512_bf16" in FLAGS,
        "int8": "avx512_vnni" in FLAGS,
    }
    found = {precision: bench.vector_units(precision) for precision in has}
    assert {precision: rate is not None for precision, rate in found.items()} == has
    width = 512 if "avx512f" in FLAGS else 256 if "avx" in FLAGS else 128
    assert all(rate.path.endswith(f"{width} bits") for rate in found.values() if rate)


def test_a_product_says_whose_code_it_is(bench: cpu.CpuBench) -> None:
    """oneDNN names the instruction set itself; AMX is said only of a CPU that has it."""
    found = {precision: bench.matmul(precision) for precision in ("fp32", "bf16")}
    assert all(rate.flops_s > 0 and rate.path for rate in found.values())
    assert ("amx" in found["bf16"].path) <= ("amx_bf16" in FLAGS)
    if "avx512_bf16" in FLAGS:
        assert found["bf16"].path.startswith("oneDNN ")


def test_what_oneDNN_prints_does_not_reach_the_screen(  # noqa: N802 - its name
    bench: cpu.CpuBench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.matmul("bf16")
    assert capfd.readouterr().out == ""


def test_what_a_gpu_is_asked_runs_on_any_device() -> None:
    """All but its graphs and events, which need one."""
    here = gpu.GpuBench(torch.device("cpu"))
    assert all(here.bandwidth(kind, 1 << 20, False) > 0 for kind in ("copy", "read", "triad"))
    assert here.vector_units("fp32") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.234e11, "123 GB/s"),
        (99.96e9, "100 GB/s"),
        (999.6e9, "1 TB/s"),
        (4.5e3, "4.5 kB/s"),
        (1.0, "1 B/s"),
        (0.00021, "210 µB/s"),
        (1.7e-9, "1.7 nB/s"),
        (3e-11, "0.03 nB/s"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, words: str) -> None:
    assert scaled(value, "B/s") == words


def test_doctor_says_level_by_level_what_was_measured() -> None:
    said = {layer.name: layer.why for layer in in_words(SURVEY)}
    assert said["bandwidth L2"] == "copy 200 GB/s, read 300 GB/s, triad 200 GB/s"
    assert said["peak fp32"] == (
        "matmul 180 GFLOP/s (MKL); vector units 200 GFLOP/s (fused multiply-add, 512 bits)"
    )
    assert said["peak int8"] == "matmul 800 GOP/s (oneDNN)"
    assert said["overheads"] == "barrier 250 ns"
    assert "quiet machine" not in said


def test_doctor_says_when_other_programs_were_in_the_way() -> None:
    busy = {layer.name: layer for layer in in_words(SURVEY.model_copy(update={"load": 3.0}))}
    assert not busy["quiet machine"].on and "--measure" in busy["quiet machine"].why


def test_doctor_says_how_to_measure() -> None:
    (layer,) = not_measured("")
    assert not layer.on and layer.why.startswith("kernelwright doctor --measure")
    (layer,) = not_measured("it is damaged")
    assert layer.why.startswith("it is damaged; kernelwright doctor --measure")


def test_a_survey_is_kept_for_one_machine(tmp_path: Path) -> None:
    assert measuring.stored(tmp_path, TARGET) is None
    machine_cache.write(measuring.file_of(tmp_path, TARGET), SURVEY)
    assert measuring.stored(tmp_path, TARGET) == SURVEY
    other = FINGERPRINT.model_copy(update={"threads": 4})
    assert measuring.stored(tmp_path, TARGET.model_copy(update={"fingerprint": other})) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"load": 1}', b"\xff\xfe", SURVEY.model_dump_json().encode()[:-9]]
)
def test_a_damaged_file_says_how_to_mend_it(tmp_path: Path, content: bytes) -> None:
    file = measuring.file_of(tmp_path, TARGET)
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged.* — delete it"):
        measuring.stored(tmp_path, TARGET)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="KERNELWRIGHT_HOME"):
        machine_cache.write(tmp_path / "file" / "x.json", SURVEY)


def test_no_compiler_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with (
        Referee.start(cache=tmp_path) as evaluator,
        pytest.raises(MissingPrerequisite, match=r"install g\+\+"),
    ):
        measuring.measure(evaluator.sessions.pool, TARGET)


@pytest.fixture
def kept_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which the evaluator finds its ceilings, and where measuring is not done."""
    mark = fingerprint(physical_threads())
    machine_cache.write(machine_cache.file_for(tmp_path, "ceilings", mark), TARGET.ceilings)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(measuring, "measure", lambda *_: SURVEY)
    return tmp_path


def test_doctor_measures_when_it_is_asked_to(kept_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(as_json=True)
    before = json.loads(capsys.readouterr().out)
    assert before["survey"] is None
    doctor(measure=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert Survey.model_validate(found["survey"]) == SURVEY
    assert "bandwidth L2" in {item["name"] for item in found["items"]}


def test_doctor_draws_what_it_knows_and_measures_only_what_it_does_not(
    kept_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = kept_home / "roofline.svg"
    doctor(roofline=file, as_json=True)
    assert "Abacus 9000" in file.read_text()
    target = TARGET.model_copy(update={"fingerprint": fingerprint(physical_threads())})
    slower = SURVEY.model_copy(update={"peaks": SURVEY.peaks[:1]})
    machine_cache.write(measuring.file_of(kept_home, target), slower)
    doctor(roofline=file, as_json=True)
    assert "fp32 vector units" not in file.read_text()


def test_doctor_goes_on_without_a_survey_that_is_damaged(
    kept_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = TARGET.model_copy(update={"fingerprint": fingerprint(physical_threads())})
    file = measuring.file_of(kept_home, target)
    file.parent.mkdir()
    file.write_text("{")
    doctor(as_json=True)
    found = json.loads(capsys.readouterr().out)
    (item,) = (item for item in found["items"] if item["name"] == "ceilings")
    assert not item["on"] and "damaged" in item["why"] and "--measure" in item["why"]


def test_a_task_without_products_has_no_place_in_a_roofline(kept_home: Path, tmp_path: Path) -> None:
    """Which is said before anything is evaluated."""
    with pytest.raises(UsageError, match="no matrix products"):
        profile(
            "builtin:level1/softmax", Path(__file__), overrides=["batch_size=8"], roofline=tmp_path / "r.svg"
        )


def test_damaged_ceilings_are_one_line_with_their_mend(kept_home: Path) -> None:
    """Verdicts rest on them: nothing is done without."""
    machine_cache.file_for(kept_home, "ceilings", fingerprint(physical_threads())).write_text("{}")
    with pytest.raises(StorageError, match=r"damaged.* — delete it"):
        doctor()


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    told: list[float] = []
    with Referee.start(cache=tmp_path_factory.mktemp("home")) as evaluator:
        found = measuring.measure(evaluator.sessions.pool, evaluator.target, told.append)
        assert measuring.stored(evaluator.sessions.pool.cache, evaluator.target) == found
    assert told == sorted(told) and told[-1] == 1.0
    return found


@pytest.mark.timed
@pytest.mark.slow
def test_a_machine_is_measured(survey: Survey) -> None:
    """Ratios alone, with room for what else runs."""
    levels = survey.levels()
    assert [level.name for level in levels] == [*(cache.name for cache in survey.caches), "memory"]
    nearest, memory = levels[0], levels[-1]
    assert all(nearest.bandwidths[kind] > 0.8 * memory.bandwidths[kind] for kind in nearest.bandwidths)
    assert nearest.bandwidths["read"] > 0.9 * nearest.bandwidths["copy"] / 2  # what a copy reads
    peaks = {(peak.precision, peak.means): peak.flops_s for peak in survey.peaks}
    assert peaks["fp32", "vector units"] > 0.5 * peaks["fp32", "matmul"]
    costs = {each.name: each.seconds for each in survey.overheads}
    assert all(seconds > 0 for seconds in costs.values())
    assert costs["barrier"] < 2 * costs["parallel region"]  # which holds one
    assert costs.get("contended atomic add", 1.0) > 0.7 * costs["atomic add"]


@pytest.mark.timed
@pytest.mark.slow
def test_the_verdicts_ceilings_are_within_what_was_measured(tmp_path: Path, survey: Survey) -> None:
    with Referee.start(cache=tmp_path) as evaluator:
        ceilings: Ceilings = evaluator.target.ceilings
    peak = max(peak.flops_s for peak in survey.peaks if peak.precision == "fp32")
    assert ceilings.fp32_flops_s < 2 * peak
    assert ceilings.copy_bytes_s < 2 * survey.levels()[-1].bandwidths["copy"]


@pytest.mark.gpu
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    with Referee.start(cache=tmp_path, device="cuda:0") as evaluator:
        found = measuring.measure(evaluator.sessions.pool, evaluator.target)
    assert found.levels()[-1].name == "memory"
    assert {peak.precision for peak in found.peaks} >= {"fp32", "tf32", "bf16", "fp16"}
    assert all(each.seconds > 0 for each in found.overheads)
