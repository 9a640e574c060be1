"""Cost of a pickle's program, found by reading its operations without carrying them out.

By pickle's memo a tuple may hold another one twice, which does so too: forty operations make one of 2^40 items. Nothing
is copied, but whoever hashes it, as a key of a dictionary, an item of a set or the key of a storage, or shows it in an
error, never ends; one that is nested deeply overflows the stack. Values are therefore followed by what hashing costs.
"""

from __future__ import annotations

import io
import mmap
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

MAX_OPERATIONS = 1 << 21  # a tensor takes about forty
MAX_DEPTH = 64  # of tuples in tuples
MAX_COST = 1 << 62  # of one value
HASHES_PER_OPERATION = 16  # of all values that are hashed
FREE_HASHES = 1 << 16
NUM_LEGACY, NUM_OF_VERSION = 5, 3  # pickles of a file of torch's older format

MAX_SHOWN_LENGTH = 4096  # of a text where a function, a class or a storage belongs

CALLS = frozenset({"REDUCE", "NEWOBJ", "NEWOBJ_EX", "BUILD", "OBJ", "INST"})
NAMING = frozenset({"GLOBAL", "PERSID"})
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class CostlyPickle(ValueError):
    """A pickle that takes more time or stack than its length lets expect; the message says what."""


@dataclass(slots=True, eq=False)
class _Value:
    """Object that a program made: the hashes that hashing it computes, its depth in tuples, its direct parts."""

    cost: int = 1
    depth: int = 0
    items: list[_Value] = field(default_factory=list)


ATOM = _Value()  # a number, a text, an object: nothing that hashing looks into
LONG_TEXT = _Value()
MARK = _Value()


class _Program:
    """State of a pickle machine: its stack, its memo, and the hashes that were computed."""

    def __init__(self) -> None:
        self.stack: list[_Value] = []
        self.memo: dict[int, _Value] = {}
        self.num_operations = 0
        self.num_hashes = 0

    def pop(self) -> _Value:
        return self.stack.pop() if self.stack else ATOM  # a damaged program: the reader refuses it

    def to_mark(self) -> list[_Value]:
        """Take what lies above the topmost mark from the stack, and the mark."""
        items: list[_Value] = []
        while self.stack and (item := self.stack.pop()) is not MARK:
            items.append(item)
        return items[::-1]

    def hash(self, *values: _Value) -> None:
        """Count the hashes of values. Raises `CostlyPickle` for too many."""
        self.num_hashes += sum(value.cost for value in values)
        if self.num_hashes > FREE_HASHES + HASHES_PER_OPERATION * self.num_operations:
            raise CostlyPickle("keys that hold themselves many times over")

    def hash_arguments(self, arguments: _Value) -> None:
        """Count what a call may hash: the items of its arguments, and of pairs in these."""
        for argument in arguments.items:
            self.hash(argument, *argument.items)
            for item in argument.items:
                self.hash(*item.items[:2])

    def tuple_of(self, items: list[_Value]) -> _Value:
        """Return a tuple. Raises `CostlyPickle` for one that is nested too deeply."""
        depth = 1 + max((item.depth for item in items), default=0)
        if depth > MAX_DEPTH:
            raise CostlyPickle(f"tuples nested more than {MAX_DEPTH} deep")
        return _Value(min(MAX_COST, 1 + sum(item.cost for item in items)), depth, items)

    def walk(self, value: _Value) -> None:
        """Count everything below a value, which is shown in an error where it is not what belongs there.

        Raises `CostlyPickle` for a long text: torch searches the error for phrases by the square of a word's length.
        """
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if item is LONG_TEXT:
                raise CostlyPickle(f"a name of more than {MAX_SHOWN_LENGTH:,} characters")
            self.hash(ATOM)
            waiting += item.items

    def append(self, items: list[_Value]) -> None:
        """Add items to the value on top."""
        if self.stack and self.stack[-1] is not ATOM:
            self.stack[-1].items += items

    def set_items(self, items: list[_Value]) -> None:
        self.hash(*items[::2])
        self.append(items)

    def add_items(self, items: list[_Value]) -> None:
        self.hash(*items)
        self.append(items)

    def run(self, name: str, argument: object) -> None:
        """Follow one operation."""
        plain = PLAIN.get(name)
        if plain is not None:
            plain(self)
        elif name in TUPLES:
            items = [self.pop() for _ in range(TUPLES[name])][::-1]
            self.stack.append(self.tuple_of(items))
        elif name in CALLS:
            self._call(name)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            key = len(self.memo) if name == "MEMOIZE" else int(str(argument))
            self.memo[key] = self.stack[-1] if self.stack else ATOM
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo.get(int(str(argument)), ATOM))
        else:
            self._other(name, argument)

    def _call(self, name: str) -> None:
        if name in ("OBJ", "INST"):  # which torch's reader does not take: they name nothing in an error
            self.hash_arguments(_Value(items=self.to_mark()))
            self.stack.append(_Value())
            return
        for _ in range(2 if name == "NEWOBJ_EX" else 1):
            self.hash_arguments(self.pop())
        if name != "BUILD":  # which keeps the object on the stack
            self.walk(self.pop())
            self.stack.append(_Value())

    def _other(self, name: str, argument: object) -> None:
        """Follow an operation that only takes values from the stack and puts plain ones there."""
        operation = OPERATIONS[name]
        for _ in operation.stack_before:
            self.walk(self.pop())
        is_long = isinstance(argument, str | bytes) and len(argument) > MAX_SHOWN_LENGTH
        if is_long and name in NAMING:
            self.walk(LONG_TEXT)
        self.stack += [LONG_TEXT if is_long else ATOM] * len(operation.stack_after)


def _dictionary(program: _Program) -> None:
    items = program.to_mark()
    program.stack.append(_Value())
    program.set_items(items)


def _frozen(program: _Program) -> None:
    items = program.to_mark()
    program.hash(*items)
    program.stack.append(program.tuple_of(items))


def _pair(program: _Program) -> None:
    items = [program.pop(), program.pop()][::-1]
    program.set_items(items)


def _duplicate(program: _Program) -> None:
    program.stack.append(program.stack[-1] if program.stack else ATOM)


PLAIN: dict[str, Callable[[_Program], object]] = {
    "MARK": lambda program: program.stack.append(MARK),
    "POP_MARK": lambda program: program.to_mark(),
    "POP": lambda program: program.pop(),
    "DUP": _duplicate,
    "TUPLE": lambda program: program.stack.append(program.tuple_of(program.to_mark())),
    "EMPTY_TUPLE": lambda program: program.stack.append(_Value()),
    "LIST": lambda program: program.stack.append(_Value(items=program.to_mark())),
    "EMPTY_LIST": lambda program: program.stack.append(_Value()),
    "EMPTY_DICT": lambda program: program.stack.append(_Value()),
    "EMPTY_SET": lambda program: program.stack.append(_Value()),
    "DICT": _dictionary,
    "FROZENSET": _frozen,
    "APPEND": lambda program: program.append([program.pop()]),
    "APPENDS": lambda program: program.append(program.to_mark()),
    "SETITEM": _pair,
    "SETITEMS": lambda program: program.set_items(program.to_mark()),
    "ADDITEMS": lambda program: program.add_items(program.to_mark()),
}
OPERATIONS = {operation.name: operation for operation in pickletools.opcodes}


def check_program(program: bytes) -> None:
    """Check a pickle that is alone. Raises `CostlyPickle`, and ValueError for one that is damaged."""
    _follow(io.BytesIO(program))


def check_legacy(path: Path) -> None:
    """Check the pickles of a file of torch's older format: three of its version, the content, the storages' keys.

    Raises `CostlyPickle`, and ValueError for one that is damaged.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for number in range(NUM_LEGACY):
            program, made = _follow(mapped)
            if number < NUM_OF_VERSION:
                program.walk(made)
            program.hash(*made.items)


def _follow(file: IO[bytes] | mmap.mmap) -> tuple[_Program, _Value]:
    """Follow one pickle up to and with its end; return the state and the value that it makes."""
    program = _Program()
    for operation, argument, _ in pickletools.genops(file):  # type: ignore[arg-type]  # it reads and tells alone
        program.num_operations += 1
        if program.num_operations > MAX_OPERATIONS:
            raise CostlyPickle(f"a pickle of more than {MAX_OPERATIONS:,} operations")
        if operation.name == "STOP":
            break
        program.run(operation.name, argument)
    return program, program.pop()
