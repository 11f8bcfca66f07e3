"""Evaluation on other machines: the client of `kernelwright serve evaluator`.

    with connect(["http://gpu7:8900"], token, cache=folder) as evaluator:  # as a LocalEvaluator, for a pool
        evaluator.evaluate(task, candidate)                                # built, verified, timed on gpu7

`wire` has the records of both sides, `client` the requests, `evaluator` the evaluator that sends them.
"""
