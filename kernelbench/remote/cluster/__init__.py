"""Evaluation on a Ray cluster: actors with an evaluator each, one for a device that is timed.

    attach("auto")                                              # to the cluster of this machine
    with on_cluster(start, device="cpu", cache=folder) as evaluator:  # as a LocalEvaluator, for a pool
        evaluator.evaluate(task, candidate)                     # built, verified, timed on one of the nodes

    nodes    of the cluster, and what each of them is for
    slot     the actor: an evaluator and its pool, on a node
    handle   calls of an actor, and what it means that one fails
    evaluator  evaluates on one timing slot; `on_cluster` puts those of one kind of machine together

Ray places the actors, restarts them and carries what they are sent (https://docs.ray.io/en/latest/ray-core).
"""
