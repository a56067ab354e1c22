"""Hand-written TileLang kernels, read and judged without being run: `gdngen inspect`."""
