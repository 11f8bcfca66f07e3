"""Prompts tell of the hardware, the goal, where eager spends its time, and what has been tried."""

from kernelwright.agent.llm.coder import idea_of
from kernelwright.agent.llm.situation import Situation, operators_table, tried_table
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import (
    Advice,
    Candidate,
    Environment,
    Evaluation,
    Interval,
    OperatorCost,
    Precision,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
    Work,
)
from tests.helpers.anywhere import TARGET
from tests.helpers.gpu.h100 import H100

TASK = Task(id="file:relu", level=1, source="class Model: pass\n")
WORK = Work(input_bytes=6_000_000, weight_bytes=0, output_bytes=4_000_000, flops=0)
BF16 = TASK.model_copy(update={"precision": Precision.bf16})
PRODUCT = WORK.model_copy(update={"flops": 10**11, "products": {"bf16": 10**11}})
COSTS = (
    OperatorCost(signature="aten.mm(…) -> …", calls=2, bytes=2_000_000, flops=3 * 10**9, seconds=3e-3),
    OperatorCost(signature="aten.relu(…) -> …", calls=1, bytes=1_000_000, flops=0, seconds=1e-3),
)


def attempt(
    verdict: Verdict,
    us: float = 0.0,
    idea: str = "",
    reason: str = "because",
    operators: tuple[OperatorCost, ...] = (),
    advice: Advice | None = None,
) -> Attempt:
    candidate = Candidate(source=f"# {us} {idea} {reason}", language="cpp", author="builtin", idea=idea)
    correct = verdict is Verdict.correct
    timing = Timing(
        candidate_us=Interval(median=us, low=us, high=us),
        eager_us=Interval(median=100.0, low=99.0, high=101.0),
        compile_us=Interval(median=80.0, low=79.0, high=81.0),
        calls_per_block=1,
        rounds=6,
    )
    ratio = 100 / us if us else 0.0
    evaluation = Evaluation(
        task=TASK.id,
        candidate=candidate.sha256,
        target=TARGET,
        verdict=verdict,
        reason=reason,
        timing=timing if correct else None,
        speedup=Speedup(eager=Interval(median=ratio, low=ratio, high=ratio)) if correct else None,
        operators=operators,
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
    return Attempt(candidate, evaluation, None, advice)


def test_the_goal_names_the_least_time_and_what_pytorch_takes() -> None:
    lines = Situation(BF16, H100, PRODUCT).goal("triton", [attempt(Verdict.correct, 50)])
    assert lines[0] == "Precision of the tensors: bf16."
    assert lines[2] == "Its matrix products and convolutions are 100 GFLOP: 101.1 us at the measured rates."
    assert lines[3] == "eager takes 100 us; torch.compile takes 80 us a call."
    assert len(Situation(BF16, H100, PRODUCT).goal("triton", [])) == 3


def test_the_hardware_names_the_peak_of_the_task_s_precision() -> None:
    measured = Situation(BF16, H100, PRODUCT).hardware("triton")[-1]
    assert "a large bf16 product runs at 989 TFLOP/s" in measured and "fp32" not in measured
    tf32 = TASK.model_copy(update={"precision": Precision.tf32})
    assert "a large tf32 product" in Situation(tf32, H100, WORK).hardware("cuda")[-1]
    ceilings = TARGET.ceilings.model_copy(update={"copy_bytes_s": 2e10, "fp32_flops_s": 3e11})
    on_cpu = TARGET.model_copy(update={"ceilings": ceilings, "hardware": ("32 KiB of L1d a core",)})
    lines = Situation(BF16, on_cpu, PRODUCT).hardware("cpp")
    assert "a large bf16 product, computed in fp32, runs at 300 GFLOP/s" in lines[-1]
    assert lines[1] == "32 KiB of L1d a core"


def test_off_a_gpu_the_chips_that_are_built_for_are_described_and_not_the_cpu() -> None:
    target = TARGET.model_copy(update={"chips": ("sm_80", "sm_90")})
    situation = Situation(BF16, target, PRODUCT)
    lines = situation.hardware("cuda")
    assert (
        "A100" in lines[0]
        and "H100" in lines[1]
        and "132 SMs" in lines[1]
        and "emulation" in lines[2]
        and "PTX" in lines[3]
    )
    assert not any(f"{TARGET.fingerprint.threads} threads, last-level" in line for line in lines)
    goal = situation.goal("cuda", [attempt(Verdict.correct, 50)])
    assert goal[1].endswith("10 MB at least: 2.985 us at the published peaks of sm_90.")
    assert goal[2].endswith("100 GFLOP: 101.1 us at the published peaks of sm_90.")
    assert len(goal) == 3  # eager's time on a CPU says nothing
    assert TARGET.fingerprint.chip in situation.hardware("cpp")[0]


def test_operators_are_listed_with_their_share_of_eager_s_time() -> None:
    table = operators_table([attempt(Verdict.build_error), attempt(Verdict.correct, 9, operators=COSTS)])
    rows = table.splitlines()
    assert rows[2] == "| 75% | `aten.mm(…) -> …` | 2 | 2 | 3 |"
    assert rows[3] == "| 25% | `aten.relu(…) -> …` | 1 | 1 |  |"
    untimed = tuple(cost.model_copy(update={"seconds": None}) for cost in COSTS)
    rows = operators_table([attempt(Verdict.unmeasured, operators=untimed)]).splitlines()
    assert rows[0] == "| operator | calls | MB | GFLOP |" and rows[2] == "| `aten.mm(…) -> …` | 2 | 2 | 3 |"
    assert operators_table([]) == ""


def test_many_operators_are_summed_up() -> None:
    costs = tuple(COSTS[1].model_copy(update={"signature": f"aten.op{i}()"}) for i in range(30))
    rows = operators_table([attempt(Verdict.correct, 9, operators=costs)]).splitlines()
    assert len(rows) == 2 + 20 + 1 and rows[-1] == "| 33% | `10 other operators` | 10 | 10 |  |"


def test_all_attempts_are_listed_with_their_ideas() -> None:
    advice = Advice(bottleneck="b", method="larger tiles", plan="p", predicted_gain=1.2)
    history = [
        attempt(Verdict.correct, 80),
        attempt(Verdict.wrong_output, idea="rows | in registers", reason="row 3\nis " + "wrong " * 40),
        attempt(Verdict.correct, 50, advice=advice),
    ]
    rows = tried_table(history).splitlines()
    assert rows[2] == "| 0 | builtin | correct | 80 | 1.25 |"
    assert rows[3].startswith("| 1 | rows / in registers | wrong_output: row 3 is wrong wrong")
    assert rows[3].endswith("… |  |  |") and len(rows[3]) < 150
    assert rows[4] == "| 2 | larger tiles | correct | 50 | 2 |"
    assert len(tried_table(history * 40).splitlines()) == 2 + 10 + 1 + 30


def test_the_idea_is_a_line_of_the_reply() -> None:
    assert idea_of("Idea: one pass, online softmax\n\nPlan…") == "one pass, online softmax"
    assert idea_of("Sure.\n**Idea:** `float4` loads**\n") == "float4` loads"
    assert idea_of("```python\nx = 1\n```") == ""
