"""A survey in words, for `doctor`."""

from collections.abc import Iterator

from kernelwright.kernelbench.records import Capability
from kernelwright.profiling.survey.records import Survey

_BUSY = 0.5  # processes that wanted a CPU, for each thread that measures


def scaled(value: float, unit: str) -> str:
    """Format a value with three digits and a prefix: 1.23e11, "FLOP/s" is "123 GFLOP/s"."""
    for size, prefix in (
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
    ):
        if value >= 0.9995 * size:  # from where three digits are a thousand of the next
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{_three_digits(value / 1e-9)} n{unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def in_words(survey: Survey) -> Iterator[Capability]:
    for level in survey.levels():
        rates = ", ".join(f"{kind} {scaled(rate, 'B/s')}" for kind, rate in level.bandwidths.items())
        yield Capability(name=f"bandwidth {level.name}", on=True, why=rates)
    for precision in dict.fromkeys(peak.precision for peak in survey.peaks):
        mine = [peak for peak in survey.peaks if peak.precision == precision]
        rates = "; ".join(f"{peak.means} {scaled(peak.flops_s, peak.unit)} ({peak.path})" for peak in mine)
        yield Capability(name=f"peak {precision}", on=True, why=rates)
    costs = "; ".join(f"{each.name} {scaled(each.seconds, 's')}" for each in survey.overheads)
    yield Capability(name="overheads", on=True, why=costs)
    if survey.load > _BUSY * survey.fingerprint.threads:
        why = (
            f"{survey.load:.1f} was the load average during the measurement; "
            "run kernelwright doctor --measure again on an idle machine"
        )
        yield Capability(name="quiet machine", on=False, why=why)


def not_measured(problem: str) -> Iterator[Capability]:
    """Yield the line for a missing survey.

    `problem`: why a stored one cannot be read; empty if there is none.
    """
    how = "kernelwright doctor --measure measures bandwidth by working set, peaks by precision, and overheads"
    yield Capability(name="ceilings", on=False, why=f"{problem}; {how}" if problem else how)
