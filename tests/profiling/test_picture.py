"""The roofline as a picture, read back from the SVG."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.profiling.picture import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    RooflinePoint,
    check_picture,
    picture,
    save,
)
from kernelwright.profiling.survey.records import Peak, Survey
from tests.helpers.profiling.surveys import SURVEY

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*points: RooflinePoint, survey: Survey = SURVEY) -> ElementTree.Element:
    return ElementTree.fromstring(picture(survey, points))


def of_class(svg: ElementTree.Element, kind: str, name: str) -> list[ElementTree.Element]:
    return [each for each in svg.iter(SVG + kind) if name in each.get("class", "").split()]


def slopes(svg: ElementTree.Element) -> list[tuple[float, ...]]:
    """Of each bandwidth, the fastest first: x and y where it begins and where it ends."""
    return [
        tuple(map(float, re.findall(r"-?[\d.]+", each.attrib["d"])))
        for each in of_class(svg, "path", "slope")
    ]


def dots(svg: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in of_class(svg, "circle", "dot")]


def test_every_ceiling_is_drawn_with_its_name() -> None:
    svg = drawn()
    labels = [each.text for each in of_class(svg, "text", "slope-label")]
    assert labels == ["L1  600 GB/s (read)", "L2  300 GB/s (read)", "memory  31.5 GB/s (read)"]
    names = [each.text for kind in ("matmul-label", "units-label") for each in of_class(svg, "text", kind)]
    assert names == [
        "int8 matmul  800 GOP/s",
        "fp32 matmul  180 GFLOP/s",
        "fp32 vector units  200 GFLOP/s",
    ]
    assert any("Abacus 9000" in (each.text or "") for each in of_class(svg, "text", "title"))


def test_its_colours_need_no_browser() -> None:
    """Viewers that know no variables of CSS take what they do not understand for black."""
    (style,) = drawn().iter(SVG + "style")
    light, _, dark = (style.text or "").partition("@media")
    assert "var(" not in light + dark
    assert {".page { fill: #ffffff; }", ".page { fill: #15171a; }"} == set(
        re.findall(r"\.page {.*?}", light + dark)
    )


def test_a_kernel_at_the_roof_lies_on_its_line() -> None:
    """One bound by memory, one by the vector units, and one at the ridge of memory and the highest peak."""
    memory, units, top = 31.5e9, 200e9, 800e9
    svg = drawn(
        RooflinePoint(0.5, 0.5 * memory, "copy"),
        RooflinePoint(100.0, units, "product"),
        RooflinePoint(top / memory, top, "ridge"),
    )
    (x1, y1, x2, y2) = slopes(svg)[-1]
    copy, product, ridge = dots(svg)
    assert copy[1] == pytest.approx(y1 + (y2 - y1) * (copy[0] - x1) / (x2 - x1), abs=0.3)
    (line,) = of_class(svg, "line", "units")
    assert product[1] == pytest.approx(float(line.attrib["y1"]), abs=0.1)
    assert ridge == pytest.approx((x2, y2), abs=0.2)


def test_twice_the_bandwidth_is_the_same_way_up_everywhere() -> None:
    """Both axes are logarithmic: bandwidths are parallel, as far apart as their ratios say."""
    l1, l2, memory = slopes(drawn())
    angles = [(y2 - y1) / (x2 - x1) for x1, y1, x2, y2 in (l1, l2, memory)]
    assert angles == pytest.approx([angles[0]] * 3, rel=0.01)
    assert (memory[1] - l2[1]) / (l2[1] - l1[1]) == pytest.approx(
        math.log(300 / 31.5) / math.log(2), rel=0.02
    )


def test_all_is_within_the_plot_however_far_out_a_kernel_is() -> None:
    svg = drawn(RooflinePoint(1e-4, 1e6, "slow"), RooflinePoint(1e4, 3e12, "impossible"))
    for x, y in dots(svg):
        assert LEFT <= x <= RIGHT and TOP <= y <= BOTTOM


def test_names_of_many_peaks_do_not_run_into_each_other() -> None:
    peaks = tuple(Peak(precision=f"fp{n}", means="matmul", flops_s=2e11 + n, path="") for n in range(24))
    svg = drawn(survey=SURVEY.model_copy(update={"peaks": peaks}))
    ys = sorted(float(each.attrib["y"]) for each in of_class(svg, "text", "matmul-label"))
    assert min(b - a for a, b in itertools.pairwise(ys)) >= 14
    assert ys[0] > 0 and ys[-1] <= BOTTOM + 5


def test_names_of_kernels_in_one_place_do_not_run_into_each_other() -> None:
    svg = drawn(*(RooflinePoint(1.0, 5e9 * (1 + number / 50), f"kernel {number}") for number in range(6)))
    labels = [each for each in of_class(svg, "text", "halo") if (each.text or "").startswith("kernel")]
    boxes = [(float(each.attrib["x"]), float(each.attrib["y"])) for each in labels]
    for number, (x, y) in enumerate(boxes):
        assert all(abs(x - a) > 40 or abs(y - b) >= 14 for a, b in boxes[:number])


def test_a_candidates_name_stays_text() -> None:
    svg = drawn(RooflinePoint(1.0, 1e9, "<script>\x00alert(1)</script> & a name that does not seem to end"))
    assert not list(svg.iter(SVG + "script"))
    assert any(
        (each.text or "").startswith("<script>?alert(1)</script> &") for each in svg.iter(SVG + "text")
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("roofline.png", "such as roofline.svg"),
        ("roofline", "ends in .svg"),
        ("nowhere/roofline.svg", "not exist"),
    ],
)
def test_where_no_picture_can_be_written_is_said_with_the_mend(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_picture(tmp_path / name)


def test_a_picture_is_written(tmp_path: Path) -> None:
    check_picture(tmp_path / "a.svg")
    save(tmp_path / "a.svg", picture(SURVEY))
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag == SVG + "svg"
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(StorageError, match=r"b\.svg cannot be written"):
        save(tmp_path / "b.svg", "")
