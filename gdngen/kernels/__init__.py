"""The kernels that gdngen comes with, wherever they lie: `gdngen.kernels.gated_delta_rule` is the
`generated/gated_delta_rule.py` of a checkout, and the same file inside an installed wheel.
"""

from gdngen.resources import GENERATED

__path__ = [str(GENERATED)]
