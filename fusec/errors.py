"""The one error tree of the `fusec` package.

    FusecError
    ├── OptionsError          an option or a FUSEC_* variable has a value that makes no sense
    ├── CaptureUnsupported    Dynamo's graph holds something that cannot become our Graph: run eager
    ├── CompilerError         a fault on the way from Graph to Program
    │   ├── ParseError            a text does not say a graph or an expression
    │   ├── VerifyError       a stage was handed, or produced, IR that breaks its invariants
    │   ├── LoweringError     an operation could not be turned into loops
    │   ├── ScheduleError     the groups found are not a legal schedule
    │   ├── CodegenError      no source could be written for a group
    │   └── CompileError      a kernel's compiler failed, or is not there
    │       └── CompilerLost      it came to no end: killed, crashed, out of time or memory
    ├── ArtifactError         an artifact's bytes do not say what they should
    │   ├── WireError         a graph, plan or program does not decode within its bounds
    │   └── LoadError         the artifact is whole, but this process cannot load it
    ├── ChildLost             a child process crashed, hung or could not start
    └── RemoteError           the cache service or the farm
        ├── FarmFailed        the farm tried and reported an error
        └── PolicyError       the policy `require` forbids the local compile that would follow

Every error says what was wrong, where, and what to do about it. None of them reaches a training
loop under the default policy: the backend turns them into a local compile or an eager run, one
warning and a counter.
"""

from enum import StrEnum


class FusecError(Exception):
    """Root of the tree.

    message: what was wrong, in one sentence.
    where: the place in the user's terms: an operation, a kernel, a file, an address.
    hint: what to do about it.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.where:
            text += f" (at {self.where})"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders inside a farm's own machinery; keyword-only arguments
        # would be lost by the default.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    kind: type[FusecError], args: tuple[object, ...], state: dict[str, object]
) -> FusecError:
    """Make an error again without calling its constructor, whatever its signature is."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class OptionsError(FusecError):
    """An option or an environment variable has a value that makes no sense."""


class CaptureUnsupported(FusecError):
    """The captured graph holds something that has no place in our Graph; the caller runs eager."""


class CompilerError(FusecError):
    """A fault on the way from Graph to Program."""


class ParseError(CompilerError):
    """A text is not the text form of a graph or an expression.

    line, column: where, both counted from 1; 0 when there is no place.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        line: int = 0,
        column: int = 0,
    ) -> None:
        super().__init__(
            message, where=where or (f"line {line}, column {column}" if line else None), hint=hint
        )
        self.line = line
        self.column = column


class VerifyError(CompilerError):
    """A value breaks the invariants of its intermediate representation."""


class LoweringError(CompilerError):
    """An operation could not be turned into loops."""


class ScheduleError(CompilerError):
    """The groups found are not a legal schedule."""


class CodegenError(CompilerError):
    """No source could be written for a group."""


class CompileError(CompilerError):
    """A kernel's compiler failed, ran out of time or is not there.

    output: what it wrote, shortened by the raiser.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.output = output

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.output}" if self.output else text


class Loss(StrEnum):
    """How a child process, or a compiler, was lost."""

    START = "start"  # it did not begin
    CRASH = "crash"  # a signal, an error that nothing caught
    TIME = "time"  # more of the clock or of a processor than it was given
    MEMORY = "memory"
    STOPPED = "stopped"  # by its parent, which needs its answer no more


class CompilerLost(CompileError):
    """A kernel's compiler came to no end; another try may do better. loss: in which way."""

    def __init__(
        self,
        message: str,
        loss: Loss = Loss.CRASH,
        *,
        where: str | None = None,
        hint: str | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message, where=where, hint=hint, output=output)
        self.loss = loss


class ArtifactError(FusecError):
    """An artifact's bytes do not say what they should."""


class WireError(ArtifactError):
    """A graph, plan or program does not decode, or is larger or deeper than allowed."""


class LoadError(ArtifactError):
    """The artifact is whole, but this process cannot load it."""


class ChildLost(FusecError):
    """A child process crashed, hung or could not start; what it worked on is lost.

    output: the last of what it wrote. loss: in which way.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        output: str = "",
        loss: Loss = Loss.CRASH,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.output = output
        self.loss = loss


class RemoteError(FusecError):
    """The cache service or the farm could not do what was asked."""


class FarmFailed(RemoteError):
    """The farm tried to compile and reported an error.

    kind: the farm's name for it (`farm.retry.ErrorKind`), as ``compile_error``.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind


class PolicyError(RemoteError):
    """The policy `require` forbids the local compile that would follow here."""
