"""`Spec` -> its variants, each resolved and analysed. Every check runs, whatever the others find."""

from collections.abc import Mapping

from gdngen import analysis, plan, proof, scopes, variants
from gdngen.analysis import Analysis
from gdngen.errors import Report
from gdngen.model import Kernel
from gdngen.syntax import Spec


def check(
    spec: Spec, report: Report, settings: Mapping[str, str] = {}
) -> tuple[tuple[Kernel, Analysis], ...]:
    """The variants that `settings` ask for; fit for planning only if the report holds no error."""
    checked = []
    for kernel in variants.kernels(spec, report, settings):
        found = analysis.check(kernel, report)
        scopes.check(kernel, report)
        proof.check(kernel, report)
        plan.check_reuse(kernel, found, report)
        checked.append((kernel, found))
    return tuple(checked)
