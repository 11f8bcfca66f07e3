"""All that can be told of a candidate here: what each profiler reads, or why it cannot."""

from kernelbench.evaluator import Evaluator
from kernelbench.records import Candidate, Evaluation, Layer, Task
from profiling.records import Profile
from profiling.roofline import roofline
from profiling.static.reading import static_metrics
from profiling.static.unreadable import Unreadable


def profile(evaluator: Evaluator, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile:
    """The profile of a candidate that `evaluator` has evaluated. Raises TaskError.

    Only of a timed one there is a roofline; the machine code is read of any that has built some.
    """
    known = roofline(evaluator.work(task), evaluation.target, evaluation)
    if known is None:
        rungs = [Layer(name="roofline", on=False, why="the candidate was not timed")]
        known = Profile(metrics=(), bottleneck="unknown", speed_of_light=None)
    else:
        rungs = [Layer(name="roofline", on=True, why="its time over what its bytes and FLOPs take at least")]
    try:
        if evaluation.target.device != "cpu":
            raise Unreadable("what GPU kernels were built to is not known to this version")
        read = static_metrics(evaluator.pool, candidate.sha256)
        rungs.append(Layer(name="static", on=True, why="the loops of its kernels, by objdump"))
    except Unreadable as error:
        read = ()
        rungs.append(Layer(name="static", on=False, why=str(error)))
    return known.model_copy(update={"metrics": (*known.metrics, *read), "rungs": tuple(rungs)})
