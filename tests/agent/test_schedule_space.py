"""Schedules as lines of tokens: every line of the grammar is a file, and chance draws all of them."""

import random

import pytest

from kernelwright.agent.tuner.policy.features import Words, features
from kernelwright.agent.tuner.policy.space import ScheduleSpace, Slot, line_of, schedule_of
from tests.helpers.builtin.schedules import space_of


@pytest.fixture(scope="module")
def softmax() -> ScheduleSpace:
    """One kernel where all is fused, three where nothing is."""
    return space_of("torch.erf(torch.softmax(torch.tanh(x), dim=-1))")


@pytest.fixture(scope="module")
def pointwise() -> ScheduleSpace:
    return space_of("torch.erf(torch.tanh(x))")


def test_number_of_schedules(softmax: ScheduleSpace, pointwise: ScheduleSpace) -> None:
    assert pointwise.size == 2 * 2 * 9 * 2 * 2 * 2
    fused, apart = 2 * 2 * 2 * 5 * 2 * 2 * 2, 2 * 2 * (9 * 8) * (5 * 8) * (5 * 8)
    assert softmax.size == fused + apart == 320 + 460_800


def test_the_grammar_names_the_knobs_of_every_kernel(softmax: ScheduleSpace) -> None:
    knobs = [slot.asked for slot in softmax.slots]
    assert knobs[:4] == ["fuse?2", "vector?2", "unroll?2", "k0:"] and "k2:" in knobs
    assert Slot("k0", "block", 3).tokens == ("block=64", "block=128", "block=256")


def test_every_line_is_a_file_and_says_its_schedule(softmax: ScheduleSpace) -> None:
    rng = random.Random(0)
    for _ in range(20):
        line = " ".join(rng.choice(slot.tokens) for slot in softmax.slots)
        assert softmax.is_line(line)
        made, said = softmax.candidate(line), schedule_of(line)
        compile(made.source, "candidate", "exec")
        assert made.kernels and made.language == "cpp"
        differing = {k for k, v in made.schedule.items() if k != "kernels" and said.get(k, v) != v}
        # A larger block than a row is the row; nothing else is other than the line says.
        assert {knob.rpartition(".")[2] for knob in differing} <= {"block"}


def test_chance_draws_each_schedule_of_a_small_space(pointwise: ScheduleSpace) -> None:
    rng = random.Random(0)
    drawn = [pointwise.draw(rng) for _ in range(3000)]
    assert all(map(pointwise.is_line, drawn)) and len(set(drawn)) == pointwise.size


def test_chance_fuses_as_often_as_not(softmax: ScheduleSpace) -> None:
    rng = random.Random(0)
    fused = sum(softmax.draw(rng).startswith("fuse=all") for _ in range(400))
    assert 150 < fused < 250


def test_what_is_no_line_is_refused(softmax: ScheduleSpace) -> None:
    line = softmax.draw(random.Random(0))
    for wrong in ("", line.rpartition(" ")[0], f"{line} unroll=on", line.replace("vector=", "victor=")):
        assert not softmax.is_line(wrong)
    with pytest.raises(ValueError, match="'block=7' is no value of a knob"):
        schedule_of("k0: block=7")


def test_a_schedule_has_a_line_of_its_own(softmax: ScheduleSpace) -> None:
    rng = random.Random(3)
    for _ in range(10):
        line = softmax.draw(rng)
        made = softmax.candidate(line)
        assert softmax.candidate(line_of(made.schedule, softmax.slots)).sha256 == made.sha256


def test_features_are_operators_sizes_bytes_and_flops(softmax: ScheduleSpace) -> None:
    found = features(softmax.graph)
    assert found[0] == "tanh" and {"rows:8", "columns:10", "bytes:21"} <= set(found)


def test_a_policy_reads_the_nearest_number_that_it_knows(softmax: ScheduleSpace) -> None:
    words = Words(["tanh", "rows:4", "rows:9", "columns:15", "bytes:21"])
    read = words.prompt(softmax).split()
    assert read[:4] == ["tanh", "rows:9", "columns:15", "bytes:21"]  # no erf, no flops: never learned
    assert read[4:] == [slot.asked for slot in softmax.slots]
