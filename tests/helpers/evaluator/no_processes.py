"""A local evaluator without processes, beside one that evaluates elsewhere."""


class NoProcesses:
    """Stands for the local evaluator, whose processes trace tasks: here nothing is traced."""

    def __init__(self) -> None:
        self.sessions = self

    def sibling(self, cache: object = None) -> "NoProcesses":
        return self

    @property
    def pool(self) -> "NoProcesses":
        return self

    def abort(self) -> None:
        pass

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
