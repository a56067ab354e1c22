"""`Spec` -> variants, each a `Kernel` with every name resolved, checked and its live ranges known."""
