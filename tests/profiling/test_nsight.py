"""Nsight Compute: the tool is played by a script, and the samples of what it prints are written by hand.

They follow the documented format; none of them comes from a GPU. The table has the columns that `ncu --csv --page raw` gives, and its habits: units in the second row, commas
between thousands, "n/a" for what a chip cannot count.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.gpu import under_tool
from kernelwright.profiling.gpu.counted import LaunchCounters, Wanted, launches, listed, metrics_of, wanted
from kernelwright.profiling.gpu.kernels import base_name, declared, is_own
from kernelwright.profiling.gpu.nsight import NsightCompute, command, explained, names
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject
from kernelwright.profiling.selection import MetricSample, select
from tests.helpers.profiling.evaluated import EXPONENTIALS

ASKED = Wanted(
    {
        "duration": "gpu__time_duration.sum",
        "dram_read": "dram__bytes_read.sum",
        "l2_hit_rate": "lts__t_sector_hit_rate.pct",
        "registers_per_thread": "launch__registers_per_thread",
        "tensor_pipe": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    },
    (),
)
KNOWN = ('"ID"', '"Process ID"', '"Process Name"', '"Host Name"', '"Kernel Name"', '"Context"', '"Stream"',
         '"Block Size"', '"Grid Size"', '"Device"', '"CC"')  # fmt: skip
HEADER = ",".join((*KNOWN, *(f'"{name}"' for name in sorted(ASKED.names.values()))))
UNITS = ",".join(11 * ['""'] + ['"byte"', '"ns"', '"register/thread"', '"%"', '"%"'])


def row(number: int, kernel: str, *values: str) -> str:
    before = (str(number), "99", "python3.11", "127.0.0.1", kernel, "1", "7", "(256, 1, 1)", "(8, 1, 1)", "0")
    return ",".join(f'"{value}"' for value in (*before, "9.0", *values))


WRITTEN_BY_HAND = "\n".join(
    (
        "==PROF== Connected to process 99 (/usr/bin/python3.11)",
        '==PROF== Profiling "softmax_kernel" - 0: 0%....50%....100% - 9 passes',
        HEADER,
        UNITS,
        row(
            0,
            "void softmax_kernel<float, 4>(const T1 *, T1 *, int)",
            "1,048,576",
            "3,000",
            "40",
            "50.00",
            "n/a",
        ),
        row(
            1, "void softmax_kernel<float, 4>(const T1 *, T1 *, int)", "4,096", "1,000.00", "40", "90", "n/a"
        ),
        row(
            2, "void at::native::vectorized_elementwise_kernel<4, F, D>(int, T2)", "8", "500", "16", "0", "0"
        ),
        "==PROF== Disconnected from process 99",
    )
)


def test_the_table_is_read_in_the_catalogue_s_units() -> None:
    first, second, third = launches(WRITTEN_BY_HAND, ASKED)
    assert first.values == pytest.approx(
        {"dram_read": 1048576, "duration": 3.0, "registers_per_thread": 40, "l2_hit_rate": 0.5}
    )
    assert second.values["duration"] == 1.0 and second.values["dram_read"] == 4096
    assert third.values["tensor_pipe"] == 0.0 and "vectorized" in third.kernel


def test_launches_of_a_kernel_are_added_or_averaged_by_their_duration() -> None:
    found = Profile(
        metrics=tuple(metrics_of(launches(WRITTEN_BY_HAND, ASKED))), bottleneck="unknown", speed_of_light=None
    )
    assert found.kernels == ("softmax_kernel", "vectorized_elementwise_kernel")
    value = {m.name: m.value for m in found.metrics if m.kernel == "softmax_kernel"}
    assert value == pytest.approx(
        {
            "profiled_launches": 2,
            "duration": 4.0,
            "dram_read": 1048576 + 4096,
            "l2_hit_rate": 0.75 * 0.5 + 0.25 * 0.9,
            "registers_per_thread": 40,
        }
    )


def test_a_sum_that_lacks_a_part_is_not_given() -> None:
    found = list(
        metrics_of([LaunchCounters("k", {"dram_read": 5.0, "l2_hit_rate": 0.5}), LaunchCounters("k", {})])
    )
    assert {m.name: m.value for m in found} == {"profiled_launches": 2, "l2_hit_rate": 0.5}


def test_older_units_are_known_and_wrong_ones_are_not_taken() -> None:
    for given, microseconds in (("nsecond", 0.003), ("usecond", 3.0), ("msecond", 3000.0), ("cycle", None)):
        units = UNITS.replace('"ns"', f'"{given}"')
        [launch] = launches("\n".join((HEADER, units, row(0, "k", "1", "3", "4", "5", "6"))), ASKED)
        assert launch.values.get("duration") == (microseconds and pytest.approx(microseconds))


@pytest.mark.parametrize(
    "text",
    ["", "==ERROR== no", '"ID","Process ID"\n"",""', HEADER, '"ID","Kernel Name"', f'"ID","{"x" * 200_000}"'],
)
def test_what_is_no_table_is_said(text: str) -> None:
    with pytest.raises(Unavailable, match="table"):
        launches(text, ASKED)


def test_rows_that_are_cut_off_or_infinite_are_not_taken() -> None:
    text = "\n".join((HEADER, UNITS, row(0, "k", "1e999", "3", "4", "5", "inf"), '"1","99","cut'))
    [launch] = launches(text, ASKED)
    assert set(launch.values) == {"duration", "registers_per_thread", "l2_hit_rate"}


QUERY_WRITTEN_BY_HAND = """
Chip gh100

dram__bytes_read                                  # of bytes read from DRAM
"gpu__time_duration","Counter","nsecond","incremental duration in nanoseconds; isolated measurement"
lts__t_sector_hit_rate                            proportion of L2 sector lookups that hit

Note that these names take a suffix; see --query-metrics-mode
"""


def test_what_a_chip_has_is_asked_for_and_nothing_else() -> None:
    known = listed(QUERY_WRITTEN_BY_HAND)
    assert known == {"dram__bytes_read", "gpu__time_duration", "lts__t_sector_hit_rate"}
    ours = ["duration", "dram_read", "dram_written", "registers_per_thread", "stall_gmma"]
    asked = wanted(ours, known)
    assert list(asked.names) == ["duration", "dram_read", "registers_per_thread"]
    assert asked.lacking == ("dram_written", "stall_gmma")
    other = wanted(["dram_read"], frozenset({"dram__bytes_op_read"}))
    assert other.names == {"dram_read": "dram__bytes_op_read.sum"}  # as newer chips call it
    assert wanted(ours, frozenset()).lacking == ()  # nothing is known: all are tried
    assert asked.without({"dram__bytes_read"}).lacking == ("dram_written", "stall_gmma", "dram_read")


def test_what_a_selection_kept_is_counted_and_the_time_always(tmp_path: Path) -> None:
    assert len(names(None)) == sum(bool(known.names) for known in CATALOGUE.values()) > 40
    values = [float(number) for number in range(6)]
    samples = [
        MetricSample(group, value, {"dram_read": value, "l2_hit_rate": value if group == "a" else -value})
        for group in "ab"
        for value in values
    ]
    kept = names(select(samples, "cuda", ["H100"]))
    assert "duration" in kept and "dram_read" in kept and "stall_barrier" in kept
    assert "l2_hit_rate" not in kept and "stall_wait" not in kept


SOURCE = '''
import torch, triton
from torch import nn
import triton.language as tl

@triton.autotune(configs=[], key=[])
@triton.jit
def add_kernel(x): pass

def helper(x): pass

CUDA = r"""
template <typename T>
__global__ void __launch_bounds__(256, 2) row_max(const T* x) {}
extern "C" __global__ __launch_bounds__(128) void scale(float* y) {}
__global__ static void gemm_tiled(float *y) {}
__device__ float twice(float x) { return 2 * x; }
"""
'''


def test_kernels_that_a_file_declares_are_its_own() -> None:
    own = declared(SOURCE)
    assert own == {"add_kernel", "row_max", "scale", "gemm_tiled"}
    for name in (
        "add_kernel",
        "add_kernel_0d1d2",
        "void row_max<float>(const T1 *)",
        "gemm_tiled",
        "unheard_of",
    ):
        assert is_own(name, own), name


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, T2)",
        "ampere_sgemm_128x64_tn",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(Params)",
        "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>(float)",
        "void (anonymous namespace)::softmax_warp_forward<at::native::X>(float*)",
        "triton_poi_fused_relu_0",
        "void cub::DeviceReduceKernel<Policy>(float*)",
        "Memcpy DtoD (Device -> Device)",
    ],
)
def test_kernels_of_libraries_are_not(name: str) -> None:
    assert not is_own(name, declared(SOURCE))


def test_one_call_is_counted_at_the_clocks_that_there_are() -> None:
    said = " ".join(command("ncu", ASKED, frozenset({"b", "a"}), cold=True))
    for part in (
        "--profile-from-start off",
        "--replay-mode kernel",
        "--clock-control none",
        "--cache-control all",
        "--kernel-name regex:(^|:)(a|b)",
        "--metrics gpu__time_duration.sum,dram__bytes_read.sum,",
        "--csv --page raw --print-units base",
    ):
        assert part in said
    hot = " ".join(command("ncu", ASKED, frozenset(), cold=False))
    assert "--cache-control none" in hot and "--kernel-name" not in hot


def test_names_of_kernels_without_what_surrounds_them() -> None:
    assert base_name("void mine::(anonymous namespace)::row_max<float, (int)4>(T1 const*)") == "row_max"
    assert base_name("<unnamed>::scale(float *)") == "scale" and base_name("add_kernel") == "add_kernel"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
            "Counters on the target device 0. For instructions see https://developer.nvidia.com/ERR_NVGPUCTRPERM",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool",
            "dcgmi",
        ),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "newer ncu"),
        ("==PROF== Disconnected\n==WARNING== No kernels were profiled.", "no kernel of its own"),
        ("==ERROR== Something new.\n", "ncu: Something new."),
    ],
)
def test_errors_are_explained(said: str, words: str) -> None:
    assert words in str(explained(said))
    assert explained("==PROF== all is well\n") is None


# Runs the program that it is given, and has the table for those who do not ask for hit rates.
TOOL = """\
#!/bin/sh
case "$1" in
--version) echo "NVIDIA (R) Nsight Compute Command Line Profiler"; echo "Version 2025.1.1.0 (build 1)"; exit;;
--query-metrics) cat "$0.query"; exit;;
esac
while [ "$1" != "--log-file" ]; do
    [ "$1" = "--metrics" ] && metrics="$2"
    shift
done
log="$2"
shift 2
case "$metrics" in
*lts__t_sector*) echo '==ERROR== Failed to find metric regex:^lts__t_sector_hit_rate[.](pct)$' > "$log"; exit 1;;
esac
"$@" || exit 1
cat "$0.table" > "$log"
"""


@pytest.fixture(scope="module")
def evaluator(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    """Whose workers find the script."""
    folder = tmp_path_factory.mktemp("cuda") / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(TOOL)
    (folder / "ncu").chmod(0o755)
    (folder / "ncu.query").write_text(QUERY_WRITTEN_BY_HAND)
    (folder / "ncu.table").write_text(WRITTEN_BY_HAND)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setenv("CUDA_HOME", str(folder.parent))  # which candidates may read
        with Referee.start(cache=home, without=("distinct_uid",)) as made:
            yield made


@pytest.fixture(scope="module")
def subject(evaluator: Referee) -> Subject:
    """As of a correct candidate, on a CPU; its file declares a kernel of the table."""
    source = (
        EXPONENTIALS.replace("Model(", "ModelNew(") + '\nCUDA = "__global__ void softmax_kernel(float* x)"\n'
    )
    task = Task(id="file:exp", level=1, source=EXPONENTIALS)
    candidate = Candidate(source=source, language=language_of(source), author="test")
    evaluation = evaluator.rejected(task, candidate, "").model_copy(update={"verdict": Verdict.correct})
    return Subject(evaluator, task, candidate, evaluation, chip="sm_90")


def test_own_kernels_are_counted_behind_the_fence(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_tool, "require_kernels", lambda _: None)
    reading = NsightCompute().read(subject)
    assert {m.kernel for m in reading.metrics} == {"softmax_kernel"}
    assert {m.provenance for m in reading.metrics} == {"ncu"}
    assert "2 launches" in reading.how and "2025.1.1.0" in reading.how
    lacking = reading.how.partition("unknown there: ")[2].split(", ")
    assert "dram_written" in lacking  # ncu's list lacked it
    assert "l2_hit_rate" in lacking  # it said so when asked


def test_without_a_gpu_or_the_tool_it_says_why(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="only for candidates on a GPU"):
        NsightCompute().read(subject)
    assert "2025.1.1.0" in NsightCompute().available()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="install Nsight Compute"):
        NsightCompute().available()


def test_a_call_without_an_end_is_ended(subject: Subject) -> None:
    source = subject.candidate.source + "\nwhile True: pass\n"
    session = subject.evaluator.sessions.open(subject.task)
    candidate = subject.candidate.model_copy(update={"source": source})
    with pytest.raises(Unavailable, match="more than 2 s"):
        under_tool.run(session, candidate, "marked", (), 2.0)
