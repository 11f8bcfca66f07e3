"""Which metrics go with the time, on candidates whose answer is known."""

import random
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError
from kernelwright.profiling.catalogue import CATALOGUE, metric
from kernelwright.profiling.records import Profile
from kernelwright.profiling.selection import (
    MetricSample,
    Selection,
    judged_by,
    place,
    select,
    stored,
    values_of,
)

TIMES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def samples(group: str, **columns: list[float]) -> list[MetricSample]:
    """One for each of TIMES; NaN where a candidate lacks the metric."""
    return [
        MetricSample(
            group, time, {name: values[i] for name, values in columns.items() if values[i] == values[i]}
        )
        for i, time in enumerate(TIMES)
    ]


def selected(*groups: list[MetricSample], most: int = 24) -> Selection:
    return select([sample for group in groups for sample in group], "cpu", ["Testium"], most)


def rising(*values: float) -> list[float]:
    return list(values or TIMES)


def falling() -> list[float]:
    return list(reversed(TIMES))


def test_what_goes_with_the_time_in_all_tasks_is_kept_the_strongest_first() -> None:
    nearly = rising(1, 2, 3, 4, 5, 6, 8, 7)
    found = selected(
        samples("a", spills=[v**3 for v in TIMES], packed_share=falling(), fma_share=rising()),
        samples("b", spills=rising(), packed_share=[-v for v in nearly], fma_share=falling()),
    )
    assert found.kept == ("spills", "packed_share")  # by rank, so a cube goes with it as well as a line
    by_name = {each.name: each for each in found.ranked}
    assert by_name["spills"].rhos == pytest.approx({"a": 1.0, "b": 1.0})
    # Spearman's by hand: two neighbours have changed places, 1 - 6 * 2 / (8 * 63).
    assert by_name["packed_share"].rhos == pytest.approx({"a": -1.0, "b": -(1 - 12 / 504)})
    assert by_name["fma_share"].rhos == pytest.approx({"a": 1.0, "b": -1.0})
    assert not by_name["fma_share"].agrees
    assert by_name["spills"].chance < 0.01


def test_equal_values_share_their_rank() -> None:
    found = selected(
        samples("a", spills=rising(0, 0, 0, 0, 1, 1, 1, 1)),
        samples("b", spills=rising(0, 0, 0, 0, 1, 1, 1, 1)),
    )
    # Ranks 2.5 and 6.5: covariance 16 over the roots of 42 and 32.
    assert found.ranked[0].rhos["a"] == pytest.approx(16 * 2 / (42 * 32) ** 0.5)


def test_what_says_the_time_in_other_words_is_listed_and_never_kept() -> None:
    found = selected(
        *(samples(g, achieved_bandwidth=falling(), spills=rising(2, 1, 3, 4, 5, 6, 7, 8)) for g in "ab")
    )
    assert [each.name for each in found.ranked] == ["spills", "achieved_bandwidth"]
    assert found.kept == ("spills",)


def test_tasks_with_few_candidates_and_metrics_that_never_vary_say_nothing() -> None:
    nan = float("nan")
    found = selected(
        samples("a", spills=rising(), loops=[3.0] * 8, gathers=rising(1, 2, 3, 4, nan, nan, nan, nan)),
        samples("b", spills=rising(), loops=[3.0] * 8, gathers=rising()),
        samples("c", spills=falling())[:4],
    )
    assert found.candidates == {"a": 8, "b": 8} and found.left_out == {"c": 4}
    assert found.kept == ("spills",)  # c would have said otherwise
    assert {each.name: len(each.rhos) for each in found.ranked} == {"spills": 2, "gathers": 1}
    assert selected(samples("a", spills=rising())).kept == ()  # one task agrees with itself


def test_of_more_than_are_wanted_the_strongest_are_kept() -> None:
    columns = {"spills": rising(), "gathers": rising(1, 2, 3, 4, 5, 6, 8, 7)}
    assert selected(samples("a", **columns), samples("b", **columns), most=1).kept == ("spills",)


def test_noise_is_as_strong_as_by_chance() -> None:
    generator = random.Random(3)
    chances = []
    for _ in range(40):
        noise = [samples(g, spills=[generator.random() for _ in TIMES]) for g in "abc"]
        chances.append(selected(*noise).ranked[0].chance)
    assert 0.3 < sum(chances) / 40 < 0.7  # uniform where there is nothing to find
    assert sum(chance < 0.05 for chance in chances) <= 6


def test_values_of_kernels_are_added_or_averaged_by_their_time() -> None:
    metrics = (
        metric("duration", 30.0, "a"),
        metric("duration", 10.0, "b"),
        metric("dram_read", 100.0, "a"),
        metric("dram_read", 50.0, "b"),
        metric("l2_hit_rate", 0.8, "a"),
        metric("l2_hit_rate", 0.4, "b"),
        metric("minimal_bytes", 7.0),
    )
    found = values_of(Profile(metrics=metrics, bottleneck="unknown", speed_of_light=None))
    assert found == pytest.approx({"duration": 40, "dram_read": 150, "l2_hit_rate": 0.7, "minimal_bytes": 7})
    plain = (metric("packed_share", 1.0, "a"), metric("packed_share", 0.0, "b"), metric("spills", 2, "a"))
    found = values_of(Profile(metrics=plain, bottleneck="unknown", speed_of_light=None))
    assert found == {"packed_share": 0.5, "spills": 2}


def test_a_judge_is_shown_what_was_kept_and_the_usual_of_what_could_not_be_judged() -> None:
    names = ("bandwidth_share", "spills", "fma_share", "stall_barrier", "stall_wait")
    metrics = [metric(name, 0.5) for name in names]
    usual = tuple(m.name for m in judged_by(metrics, None))
    assert usual == ("bandwidth_share", "spills", "fma_share", "stall_barrier")
    selection = selected(
        samples("a", spills=rising(), fma_share=rising(), stall_wait=rising()),
        samples("b", spills=rising(), fma_share=falling(), stall_wait=rising()),
    )
    shown = [m.name for m in judged_by(metrics, selection)]
    assert shown == ["bandwidth_share", "spills", "stall_barrier", "stall_wait"]


def test_a_selection_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert stored(tmp_path, "cuda:0") is None
    selection = selected(samples("a", spills=rising()), samples("b", spills=rising()))
    place(tmp_path, "cpu").write_text(selection.model_dump_json())
    assert stored(tmp_path, "cpu") == selection and stored(tmp_path, "cuda:1") is None
    place(tmp_path, "cpu").write_text("{}")
    with pytest.raises(StorageError, match=r"kernelwright metrics"):
        stored(tmp_path, "cpu")


def test_every_metric_says_what_it_means() -> None:
    for name, definition in CATALOGUE.items():
        assert definition.meaning, name
        assert bool(definition.names) == (definition.provenance == "ncu" and name != "profiled_launches"), (
            name
        )
