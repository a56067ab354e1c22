"""Text of a module -> formatted text that compiles."""

from gdngen.errors import GdngenError

LINE_LENGTH = 100


def formatted(text: str, name: str) -> str:
    """Black's output in an explicit mode; GdngenError where the templates made no Python of it."""
    import black

    mode = black.Mode(target_versions={black.TargetVersion.PY311}, line_length=LINE_LENGTH)
    try:
        out = black.format_str(text, mode=mode)
        compile(out, name, "exec")
    except (black.InvalidInput, SyntaxError) as e:
        raise GdngenError(f"error: {name}: what the templates make is not Python: {e}") from None
    return out
