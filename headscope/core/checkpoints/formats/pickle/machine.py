"""The stack machine that reads a pickle, and what it may cost."""

from dataclasses import dataclass, field
from typing import IO, Any

from headscope.core.checkpoints.formats.pickle.values import Dialect, Global, Instance, Opaque
from headscope.errors import Malformed

# Of a state dict, a tensor takes about 45 steps and 1.8 kB, so files of some 30,000 tensors are read. The limits keep a
# pickle that multiplies work within seconds, and within the memory that `docs/security.md` promises.
MOST_OPERATIONS = 1_500_000
MOST_PICKLE_BYTES = 75_000_000
_LARGEST_KEY = 2**20
OBJECT, SLOT, ENTRY = 64, 8, 128
"""Bytes charged for an object, for a place in a tuple or list, and for an entry of a dictionary."""


class OverLimit(Malformed):
    """A pickle that takes more operations or memory than a state dict does."""


class _Mark:
    """The mark object of the pickle machine."""


MARK = _Mark()


class _Hole:
    """Marks a place in the memo where nothing was written."""


_HOLE = _Hole()


@dataclass(slots=True)
class Machine:
    """State of a pickle machine, and what its operations have cost so far: steps and bytes of memory.

    Both are counted, never measured, so that the same file ends in the same way on every computer.
    """

    name: str
    names: set[str] | None = None
    """Names of other packages, collected where the pickle may hold any object; None where it may hold tensors only."""
    stack: list[Any] = field(default_factory=list)
    memo: list[Any] = field(default_factory=list)
    work: int = 0
    held: int = 0
    dialect: Dialect | None = None
    file: IO[bytes] | None = None

    def bad(self, what: str, kind: type[Malformed] = Malformed) -> Malformed:
        """Builds the error for a pickle that is not what was expected, with what to do next."""
        if self.names is not None:
            return kind(f"{self.name} holds a pickle that cannot be read: {what}", "check where the file is from")
        if self.dialect is not None:
            return kind(f"{self.name} is not {self.dialect.what}: {what}", "don't load it until you know why")
        return kind(f"{self.name} holds a pickle that is not a state dict: {what}", "save it as safetensors")

    def is_class(self, found: Any) -> bool:
        """True if a name stands for a class of which an instance is described."""
        return self.dialect is not None and isinstance(found, Global) and self.dialect.is_class(found)

    def spend(self, work: int, held: int = 0) -> None:
        """Counts steps, and bytes that are held from now on. Raises OverLimit over a limit."""
        self.work += work
        self.held += held
        if self.work > MOST_OPERATIONS:
            raise self.bad(f"it has more than {MOST_OPERATIONS:,} operations", OverLimit)
        if self.held > MOST_PICKLE_BYTES:
            raise self.bad(f"its values take more than {MOST_PICKLE_BYTES:,} bytes of memory", OverLimit)

    def push(self, value: Any, held: int = OBJECT) -> None:
        """Pushes a new value of `held` bytes; `read_pickle` checks the limit after each operation."""
        self.held += held + SLOT
        self.stack.append(value)

    def pop(self) -> Any:
        """Takes the top off the stack. Raises what `bad` makes if the stack is empty."""
        if not self.stack:
            raise self.bad("it takes a value from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        """Gives the top of the stack. Raises what `bad` makes if the stack is empty."""
        if not self.stack:
            raise self.bad("it reads an empty stack")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        """Takes everything above the last mark off the stack, and the mark. Raises what `bad` makes without a mark."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        raise self.bad("a mark is missing")

    def keep(self, at: int) -> None:
        """Writes the top of the stack into the memo.

        Writers number the memo from 0 or 1 without gaps. A number beyond the operations so far is refused, and so the
        memo is a list, whose time and memory no choice of numbers can raise.
        """
        if not 0 <= at <= self.work:
            raise self.bad("it writes to a memo number beyond its operations")
        gap = at - len(self.memo)
        if gap >= 0:
            self.spend(0, (gap + 1) * SLOT)
            self.memo.extend([_HOLE] * (gap + 1))
        self.memo[at] = self.top()

    def recall(self, at: int) -> Any:
        """Gives what the memo holds at a place. Raises what `bad` makes if it holds nothing."""
        found = self.memo[at] if 0 <= at < len(self.memo) else _HOLE
        if found is _HOLE:
            raise self.bad("it reads a memo that was never written")
        return found

    def set_entry(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        """Sets one entry. Raises what `bad` makes for a key that a state dict doesn't have."""
        self.spend(0, ENTRY)
        target[self.key_of(key)] = value

    def key_of(self, key: Any) -> Any:
        """Gives the key that stands for a value: only texts and small numbers, as a larger number's hash can be chosen.

        If the pickle may hold any object, objects are keys too, each by its place in memory. Any other value gets an
        object that nobody looks up. Raises what `bad` makes for others.
        """
        is_plain = type(key) is str or (type(key) is int and 0 <= key < _LARGEST_KEY)
        if is_plain or (self.names is not None and isinstance(key, Opaque)):
            return key
        if self.names is None and not isinstance(key, Instance):  # a number of NumPy in what a search kept
            raise self.bad("a key is neither a text nor a small number")
        return Opaque(type(key).__name__)
