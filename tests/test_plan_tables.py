"""Tables of plans in the documentation are what gdngen prints: `python tests/plan_tables.py` writes them."""

import pytest
from plan_tables import COMPARED, PLANNER, QUICK, README, block, printed

from gdngen.judge import mutants


@pytest.mark.parametrize("page, name, text", QUICK, ids=[name for _, name, _ in QUICK])
def test_a_table_is_what_gdngen_prints(page, name, text):
    assert block(page, name) == text(), "run python tests/plan_tables.py"


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    """(variant, target) -> cells of a row of the comparison."""
    cells = (line.split() for line in text.splitlines() if line.startswith("prepare_"))
    return {(c[0], c[1]): c[2:] for c in cells}


def test_the_comparison_with_the_compiler_is_as_printed():
    """Aggressive figures need minutes of lowering: what is here is held against the others' alone."""
    shown, now = rows(block(README, "compared")), rows(printed(f"{COMPARED} --no-lower"))
    assert len(shown) == 36 and list(shown) == list(now)
    for key, (author, author_most, order, order_most, planned, lower) in shown.items():
        assert [author, order, planned, lower] == [now[key][i] for i in (0, 2, 4, 5)], key
        figures = [
            int(n.replace(",", "")) for n in (author, author_most, order, order_most, planned)
        ]
        assert lower == "none" and figures[-1] == min(figures) < figures[0], key


def test_every_fault_is_listed_and_caught():
    lines = block(PLANNER, "planted").splitlines()[3:-1]
    assert [line.split()[0] for line in lines] == list(mutants.KINDS)
    for line in lines:
        planted, caught = line.split()[-2:]
        assert planted == caught != "0"


def test_the_figures_of_views():
    """With everything allowed every kernel of 64 rows fits 33,280 bytes."""
    table = [row.split(" | ") for row in block(PLANNER, "least").splitlines()[2:]]
    assert len(table) == 18
    for name, *cells in table:
        *_, last = [int(c.strip("| ").replace(",", "")) for c in cells]
        assert last <= (33_280 if "_c64_" in name else 16_640), name
