"""`Spec` -> its variants, each resolved and analysed. Every check runs, whatever the others find."""

from collections.abc import Mapping

from gdngen.errors import Report
from gdngen.language.syntax import Spec
from gdngen.model import analysis, scopes, variants
from gdngen.model.analysis import Analysis
from gdngen.model.model import Kernel
from gdngen.plan import plan
from gdngen.roles import proof


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
