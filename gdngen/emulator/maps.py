"""Tensor maps: how the host describes a tensor to the copy engine (TMA) of sm_90.

The host code that TileLang lowers beside a kernel makes each map by one call, with what the CUDA driver
asks for: element type, rank, address, sizes, strides in bytes, box, steps within the box (each innermost
first), interleaving, swizzle, a hint, and what lies outside.
"""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .source import EmulatorError

# The driver's numbers of element types: bytes, and whether they are floats.
ELEMENTS = {
    0: (1, False), 1: (2, False), 2: (4, False), 3: (4, False), 4: (8, False), 5: (8, False),
    6: (2, True), 7: (4, True), 8: (8, True), 9: (2, True), 10: (4, True), 11: (4, True),
    12: (4, True),
}  # fmt: skip
MOST_BOX = 256  # positions of a box along any dimension
UNIT = 16  # bytes that the engine moves together


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the copy engine sees it; sizes, strides (in bytes) and box begin with the innermost
    dimension. `swizzle` s permutes the 16-byte units of 16 << s bytes; 0 keeps their order."""

    tensor: str
    element_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    nan_outside: bool = False
    floats: bool = True

    def __post_init__(self) -> None:
        """Refuses what the driver refuses."""
        inner = self.box[0] * self.element_bytes
        faults = {
            "a rank of 1 to 5": not 1 <= len(self.shape) <= 5,
            f"boxes of 1 to {MOST_BOX}": not all(1 <= n <= MOST_BOX for n in self.box),
            "sizes above 0": min(self.shape) < 1,
            f"strides in units of {UNIT} bytes": any(n % UNIT for n in self.strides[1:]),
            f"a box of whole units of {UNIT} bytes": inner % UNIT,
            "a box within the swizzled bytes": self.swizzle and inner > UNIT << self.swizzle,
        }
        if broken := [rule for rule, fault in faults.items() if fault]:
            raise EmulatorError(f"a map of {self.tensor} needs {', '.join(broken)}: {self}")

    @property
    def argument(self) -> str:
        """As the machine reads it."""
        numbers = [self.element_bytes, int(self.floats), int(self.nan_outside), self.swizzle]
        numbers += [len(self.shape), *self.shape, *self.strides, *self.box]
        return ",".join([self.tensor, *map(str, numbers)])


def tensor_map(call: Sequence[int | str], sizes: Mapping[str, Any]) -> TensorMap:
    """The map that a call of the host makes; its arguments are numbers, or text with sizes in it."""
    kind, rank, tensor, *rest = call
    numbers = [_number(value, sizes) for value in rest]
    shape, strides, box, steps = (tuple(numbers[i * rank : (i + 1) * rank]) for i in range(4))
    interleave, swizzle, _, outside = numbers[4 * rank :]
    if interleave or set(steps) != {1}:
        raise EmulatorError(f"a map of {tensor} with interleaving or steps is not emulated")
    size, floats = ELEMENTS[int(kind)]
    return TensorMap(str(tensor), size, shape, strides, box, swizzle, bool(outside), floats)


def _number(value: int | str, sizes: Mapping[str, Any]) -> int:
    """Sums, products and quotients of numbers and sizes."""

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return int(sizes[name])
            case ast.BinOp(left=a, op=ast.Add(), right=b):
                return of(a) + of(b)
            case ast.BinOp(left=a, op=ast.Sub(), right=b):
                return of(a) - of(b)
            case ast.BinOp(left=a, op=ast.Mult(), right=b):
                return of(a) * of(b)
            case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
                return of(a) // of(b)
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[*each]):
                return (max if name == "max" else min)(map(of, each))
        raise EmulatorError(f"a map's argument is not known: {ast.unparse(node)}")

    return value if isinstance(value, int) else of(ast.parse(value, mode="eval").body)


def row_major(tensor: str, shape: Sequence[int], element_bytes: int, box: Sequence[int], **options):
    """A map of a whole tensor that lies in rows; `shape` and `box` begin with the outermost dimension."""
    strides = [element_bytes * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    turned = (tuple(reversed(x)) for x in (shape, strides, box))
    return TensorMap(tensor, element_bytes, *turned, **options)
