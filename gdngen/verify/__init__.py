"""Is a rendered module right? Its very text run on the CPU, lowered for GPUs, its CUDA emulated."""
