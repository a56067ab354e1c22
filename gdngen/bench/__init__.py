"""How fast is it? Kernels and their peers timed in one run on one GPU, beside the memory floor."""
