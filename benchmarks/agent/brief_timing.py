"""Command line of kernelwright with brief timings, for runs in which their results do not matter."""

from kernelwright.kernelbench import evaluator

_BRIEF = {"rounds": 4, "processes": 1, "most_processes": 1, "most_rounds": 4, "timing_s": 1.0}


def main() -> None:
    """Run a command. Efforts are changed before whatever uses them is imported."""
    evaluator.SEARCH = evaluator.SEARCH.model_copy(update={**_BRIEF, "block_share": 0.2})
    evaluator.EFFORTS["quick"] = evaluator.EFFORTS["quick"].model_copy(update={**_BRIEF, "block_share": 0.2})
    from kernelwright.cli import main

    main()


if __name__ == "__main__":
    main()
