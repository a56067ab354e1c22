"""The commands of `gdngen`, which alone print: what each takes, and what it does."""
