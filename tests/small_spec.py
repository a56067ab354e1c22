"""Small specs that tests edit, and what gdngen says of them."""

from dataclasses import dataclass

from gdngen import checks
from gdngen.errors import Diagnostic, Report
from gdngen.language import spec
from gdngen.model.analysis import Analysis
from gdngen.model.model import Kernel

# A line for each thing that a test breaks; every name and shape is used.
BASE = """\
kernel: tiny
dims: [N, M]
runtime: [B, T]
dtypes: {io: null, acc: float32}
options: {mode: [plain, fast]}
variants:
  forall: {N: 64, M: [64, 128], io: float16}
tensors:
  x: {role: in, shape: [B, T, M], dtype: io}
  g: {role: in, shape: [B, T], dtype: acc}
  y: {role: out, shape: [B, T, N], dtype: io}
grid: {c: "ceildiv(T, N)", b: B}
threads: 128
buffers:
  x_s: {scope: shared, shape: [N, M], dtype: io, live: load .. work}
  g_s: {scope: shared, shape: [N], dtype: acc, live: load .. work}
  t_s: {scope: shared, shape: [N, N], dtype: acc, live: work .. store}
  p_f: {scope: fragment, shape: [N, N], dtype: acc, live: work}
stages:
  load:
    - copy: x[b, c*N:(c+1)*N, :] -> x_s
    - copy: g[b, c*N:(c+1)*N] -> g_s
  work:
    - gemm: x_s @ x_s.T -> p_f
    - map: {i: N, j: N}
      do:
        - t_s[i, j] = p_f[i, j] * g_s[i]
  store:
    - copy: t_s -> y[b, c*N:(c+1)*N, :]
"""


def edited(*edits: tuple[str, str], base: str = BASE) -> str:
    """The base with each (old, new) replaced; `old` stands in it exactly once."""
    for old, new in edits:
        assert base.count(old) == 1, f"{old!r} stands {base.count(old)} times in the base"
        base = base.replace(old, new)
    return base


@dataclass(frozen=True)
class Read:
    kernels: tuple[tuple[Kernel, Analysis], ...]
    report: Report

    @property
    def errors(self) -> list[Diagnostic]:
        return self.report.errors()

    @property
    def warnings(self) -> list[Diagnostic]:
        return self.report.warnings()


def read(text: str, file: str = "s.yaml") -> Read:
    """What a spec resolves to, and everything that gdngen says of it."""
    report = Report()
    parsed = spec.parse(text, file, report)
    return Read(checks.check(parsed, report) if parsed else (), report)
