"""Text of a module -> formatted text that compiles."""

LINE_LENGTH = 100


def formatted(text: str, name: str) -> str:
    """Black's output in an explicit mode. Raises SyntaxError, which is a fault of the templates."""
    import black

    mode = black.Mode(target_versions={black.TargetVersion.PY311}, line_length=LINE_LENGTH)
    out = black.format_str(text, mode=mode)
    compile(out, name, "exec")
    return out
