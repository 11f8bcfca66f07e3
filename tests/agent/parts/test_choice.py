"""Which submodules become parts, by the times of a call of the whole."""

from kernelwright.agent.parts.choice import ChosenPart, MeasuredSubmodule, chosen


def whole(*calls: str) -> MeasuredSubmodule:
    return MeasuredSubmodule(100.0, "whole", False, calls)


def named(parts: list[ChosenPart]) -> list[tuple[list[str], int]]:
    """The places of each part as text, and its share in percent."""
    return [(["+".join(place) for place in part.places], round(100 * part.share)) for part in parts]


def test_equal_submodules_are_one_part_in_several_places() -> None:
    names = [f"blocks.{number}" for number in range(4)]
    modules = {
        "": whole("embedding", *names, "head"),
        "embedding": MeasuredSubmodule(4.0, "embedding", True),
        **{name: MeasuredSubmodule(20.0, "block", True, (f"{name}.linear",)) for name in names},
        "head": MeasuredSubmodule(16.0, "head", True),
    }
    assert named(chosen(modules)) == [(names, 80), (["head"], 16)]


def test_a_submodule_that_is_nearly_the_whole_is_passed_over_for_those_that_it_calls() -> None:
    modules = {
        "": whole("body"),
        "body": MeasuredSubmodule(95.0, "body", True, ("body.left", "body.right")),
        "body.left": MeasuredSubmodule(60.0, "left", True),
        "body.right": MeasuredSubmodule(30.0, "right", True),
    }
    assert named(chosen(modules)) == [(["body.left"], 60), (["body.right"], 30)]


def test_a_submodule_that_is_called_in_several_ways_is_none() -> None:
    modules = {
        "": whole("cell", "head"),
        "cell": MeasuredSubmodule(35.0, "cell", False, ("cell.gate",)),
        "cell.gate": MeasuredSubmodule(30.0, "gate", True),
        "head": MeasuredSubmodule(60.0, "head", True),
    }
    assert named(chosen(modules)) == [(["head"], 60), (["cell.gate"], 30)]


def test_a_chain_is_cut_into_runs_that_begin_with_what_is_expensive() -> None:
    """Convolutions with activations that write into what these give, as in VGG."""
    times = {
        "conv0": 15.0,
        "relu1": 3.0,
        "conv2": 25.0,
        "relu3": 2.5,
        "pool4": 1.0,
        "conv5": 40.0,
        "relu6": 1.0,
    }
    modules = {
        "": whole("features"),
        "features": MeasuredSubmodule(90.0, "features", True, tuple(times), is_chain=True),
        **{
            name: MeasuredSubmodule(took, name, True, writes="relu" in name, is_library=True)
            for name, took in times.items()
        },
    }
    assert named(chosen(modules)) == [
        (["conv0+relu1+conv2+relu3+pool4"], 46),
        (["conv5+relu6"], 41),
    ]


def test_a_call_of_the_library_alone_is_no_part() -> None:
    modules = {
        "": whole("norm", "conv"),
        "norm": MeasuredSubmodule(20.0, "norm", True, is_library=True),
        "conv": MeasuredSubmodule(70.0, "conv", True, is_library=True),
    }
    assert chosen(modules) == []


def test_parts_that_are_not_most_of_the_whole_are_none() -> None:
    modules = {"": whole("head"), "head": MeasuredSubmodule(40.0, "head", True)}
    assert chosen(modules) == []


def test_what_two_submodules_call_is_in_one_part_only() -> None:
    modules = {
        "": whole("left", "right"),
        "left": MeasuredSubmodule(45.0, "left", False, ("shared",)),
        "right": MeasuredSubmodule(45.0, "right", False, ("shared",)),
        "shared": MeasuredSubmodule(80.0, "shared", True, ("shared.inner",)),
    }
    assert named(chosen(modules)) == [(["shared"], 80)]
