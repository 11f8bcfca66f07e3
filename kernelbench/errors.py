"""The errors a user can fix. Each carries the fix; the CLI prints both on one line and exits 2.

    KernelwrightError
    ├── UsageError              a wrong name, option or file
    │   ├── TaskError           a task file that is not a task
    │   └── UnknownTaskError    no such task; near names are suggested
    ├── MissingPrerequisite     a compiler, package or device this command needs
    ├── StorageError            a folder or database that cannot be read or written
    └── InfrastructureError     the evaluator's own machinery failed; says nothing about the candidate

Internal invariants are asserts, not members of this family. A fault of a *candidate* is not an error at all:
it is a `Verdict` in an `Evaluation`.
"""


class KernelwrightError(Exception):
    """Error with a `message` about what is wrong, and a `fix`."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message} — {fix}")
        self.message = message
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.message, self.fix)  # from one process to another


def _again(kind: type[KernelwrightError], message: str, fix: str) -> KernelwrightError:
    made = kind.__new__(kind)
    KernelwrightError.__init__(made, message, fix)
    return made


class UsageError(KernelwrightError):
    pass


class TaskError(UsageError):
    pass


class UnknownTaskError(UsageError):
    pass


class MissingPrerequisite(KernelwrightError):  # noqa: N818 - a state of the machine, not a fault
    pass


class StorageError(KernelwrightError):
    pass


class InfrastructureError(KernelwrightError):
    pass


class Unavailable(Exception):  # noqa: N818 - what happened
    """A tool that cannot be used here, or on this candidate; `str()` gives the reason, and how to get it."""
