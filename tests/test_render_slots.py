"""What is allocated is what was planned, also where tenants of a slot lie side by side."""

import re

from rendering import kernels

from gdngen.model import analysis
from gdngen.plan import plan
from gdngen.plan.plan import Planned
from gdngen.plan.storage import Slot
from gdngen.render import render

SIDE_BY_SIDE = """\
kernel: apart
dims: [C]
runtime: [T]
variants: {forall: {C: 32}}
tensors: {x: {role: in, shape: [T, C], dtype: float32}, y: {role: out, shape: [T, C], dtype: float32}}
grid: {t: "ceildiv(T, C)"}
buffers:
  a: {scope: shared, shape: [C, C], dtype: float32}
  b: {scope: shared, shape: [C, C], dtype: float32}
stages:
  all:
    - copy: x[t*C:(t+1)*C, :] -> a
    - map: {i: C, j: C}
      do:
        - b[i, j] = a[j, i]
    - copy: b -> y[t*C:(t+1)*C, :]
"""


def test_a_slot_is_as_wide_as_its_tenants_lie():
    (kernel,) = kernels(SIDE_BY_SIDE)
    found = analysis.analyse(kernel)
    slots = (Slot((32, 64), "float32", ("a", "b"), (0, 32)),)
    made = plan.realise(kernel, found, slots, "lean", "sm_80")
    text = render.render(Planned(kernel, found, (made,)))
    assert re.findall(r"alloc_shared\((\[.*?\])", text) == ["[C, 64]"]
