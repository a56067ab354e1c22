"""The judge: what it must accept, and every kind of fault that it must see."""

import ast
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdngen import driver
from gdngen.judge import field, fuzz
from gdngen.judge import judge as judging
from gdngen.judge.addresses import addresses
from gdngen.judge.arena import Address
from gdngen.judge.judge import judge
from gdngen.model.model import Copy, Kernel, with_stages
from gdngen.plan import plan as planning
from gdngen.plan.plan import Wish

ROOT = Path(__file__).resolve().parent.parent
HARD = sorted((ROOT / "tests" / "specs").glob("*.yaml"))
SLOW: set[tuple[str, str]] = set()  # planned in the long run

HEAD = """\
kernel: small
runtime: [T]
threads: 32
grid: {c: "ceildiv(T, 16)"}
tensors:
  x: {role: in,  shape: [T, 32], dtype: float32}
  h: {role: in,  shape: [T, 32], dtype: float16}
  y: {role: out, shape: [T, 32], dtype: float32}
  z: {role: out, shape: [T, 32], dtype: float16}
"""
X, H = "x[c*16:(c+1)*16, 0:16]", "h[c*16:(c+1)*16, 0:16]"
Y, Z = "y[c*16:(c+1)*16, 0:16]", "z[c*16:(c+1)*16, 0:16]"


def tiles(**dtypes: str) -> str:
    rows = [f"  {n}: {{scope: shared, shape: [16, 16], dtype: {d}}}" for n, d in dtypes.items()]
    return "\n".join(["buffers:", *rows])


def small(buffers: str, *statements: str) -> Kernel:
    """A kernel of one stage; tensors that it doesn't use are left out."""
    body = "\n".join(f"    - {s}" for s in statements)
    head = [
        line
        for line in HEAD.splitlines()
        if "role" not in line or f"{line.split(':')[0].strip()}[c" in body
    ]
    return fuzz.load("\n".join([*head, buffers, "stages:", "  all:", body, ""])).kernel


def each(do: str, i: int = 16, j: int = 16) -> str:
    return f"map: {{i: {i}, j: {j}}}\n      do:\n        - {do}"


def rows(offset: int, itemsize: int = 4, stride: int = 16) -> Address:
    return Address(offset, (stride * itemsize, itemsize), itemsize)


def kinds(verdict) -> set[str]:
    return {f.kind for f in verdict.faults}


CHAIN = (f"copy: {X} -> a", each("b[i, j] = exp(a[i, j])"), f"copy: b -> {Y}")
BOTH = tiles(a="float32", b="float32")


# -- numbers ---------------------------------------------------------------------------------------


def test_products_are_exact():
    source = np.random.default_rng(0)
    for m, k, n in ((64, 64, 64), (16, 200, 96), (100, 8, 130)):
        a, b = source.integers(0, field.P, (m, k)), source.integers(0, field.P, (k, n))
        want = (a.astype(object) @ b.astype(object)) % field.P
        assert (field.product(a, b) == want.astype(np.int64)).all()
    top = np.full((64, 128), field.P - 1)
    assert (field.product(top, top.T) == 128).all()


@pytest.mark.filterwarnings("ignore:overflow")
def test_rounding_keeps_what_a_dtype_holds_and_nests():
    x = np.random.default_rng(0).integers(0, field.P, 10_000)
    for dtype in ("float16", "bfloat16", "float32", "int8", "int16", "int32", "bool"):
        once = field.rounded(x, dtype)
        assert (field.rounded(once, dtype) == once).all()
        assert (once != x).mean() > 0.7
        assert field.rounded(np.array([0]), dtype) == [0]
    for narrow, wide in (
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("int8", "bfloat16"),
        ("int16", "float32"),
    ):
        once = field.rounded(x, narrow)
        assert (field.rounded(once, wide) == once).all()
    assert (
        field.rounded(field.rounded(x, "float16"), "bfloat16") != field.rounded(x, "float16")
    ).any()


# -- plans that are right --------------------------------------------------------------------------


@pytest.mark.parametrize("path", HARD, ids=lambda p: p.stem)
@pytest.mark.parametrize("policy", planning.POLICIES)
def test_hard_cases(path, policy):
    if (path.stem, policy) in SLOW:
        pytest.skip("planned in the long run")
    hard(path, policy)


@pytest.mark.long
@pytest.mark.parametrize("stem, policy", sorted(SLOW))
def test_slow_hard_cases(stem, policy):
    hard(ROOT / "tests" / "specs" / f"{stem}.yaml", policy)


def hard(path: Path, policy: str) -> None:
    for v in driver.load(path).variants:
        made = planning.plan(v.kernel, v.found, Wish(policy), "sm_80")
        verdict = fuzz.judged(v, made)
        assert verdict.ok, verdict.faults
        assert verdict.undefined == ()


@pytest.mark.parametrize("policy", planning.POLICIES)
def test_prepare(policy):
    for v in driver.load(ROOT / "specs" / "prepare.yaml").variants[::4]:
        verdict = fuzz.judged(v, planning.plan(v.kernel, v.found, Wish(policy), "sm_80"))
        assert verdict.ok, verdict.faults
        assert verdict.blocks == 2


def test_in_place_at_one_address():
    kernel = small(BOTH, *CHAIN)
    assert judge(kernel, kernel, {"a": rows(0), "b": rows(0)}).ok


def test_side_by_side_columns():
    kernel = small(BOTH, *CHAIN)
    assert judge(kernel, kernel, {"a": rows(0, stride=32), "b": rows(64, stride=32)}).ok


def test_staging_through_a_tile_of_the_outputs_own_dtype():
    """Rounding twice to one dtype is rounding once; through a narrower one it isn't."""
    f = "\n  f: {scope: fragment, shape: [16, 16], dtype: float32}"
    direct = small(tiles(a="float32") + f, f"copy: {X} -> a", "copy: a -> f", f"copy: f -> {Z}")
    for dtype, right in (("float16", True), ("float32", True), ("bfloat16", False)):
        staged = small(
            tiles(a="float32", s=dtype) + f,
            f"copy: {X} -> a", "copy: a -> f", "copy: f -> s", f"copy: s -> {Z}",
        )  # fmt: skip
        where = {"a": rows(0), "s": rows(4096, 4 if dtype == "float32" else 2)}
        assert judge(direct, staged, where).ok is right


def test_unwritten_elements_are_the_authors_business():
    """Rows past the end are never written; a plan is judged on the others."""
    some = "map: {i: 16, j: 16}\n      if: c*16 + i < T\n      do:\n        - b[i, j] = a[i, j]"
    kernel = small(BOTH, f"copy: {X} -> a", some, f"copy: b -> {Y}")
    verdict = judge(kernel, kernel, {"a": rows(0), "b": rows(1024)})
    assert verdict.ok and verdict.undefined == ("b",)
    assert judge(kernel, kernel, {"a": rows(0), "b": rows(0)}).ok
    kernel = small(
        BOTH, f"copy: {X} -> a", some, each("a[i, j] = b[i, j] + a[i, j]"), f"copy: a -> {Y}"
    )
    assert judge(kernel, kernel, {"a": rows(0), "b": rows(1024)}).ok
    assert not judge(kernel, kernel, {"a": rows(0), "b": rows(0)}).ok


# -- planted faults --------------------------------------------------------------------------------


def prepare() -> driver.Checked:
    wanted = {"BC": "64", "DK": "64", "DV": "64", "io": "float16"}
    return driver.load(ROOT / "specs" / "prepare.yaml", wanted).variants[0]


def test_beta_on_p():
    """beta is needed after P is written, so it can't lie on it."""
    v = prepare()
    made = planning.plan(v.kernel, v.found, Wish("match"), "sm_80")
    where = addresses(made.kernel, made.plan)
    assert judge(v.kernel, made.kernel, where).ok
    on_p = {**where, "beta_s": replace(where["beta_s"], offset=where["P"].offset)}
    verdict = judge(v.kernel, made.kernel, on_p)
    assert {("beta_s", "P"), ("P", "beta_s")} & {f.buffers for f in verdict.faults}
    assert "differs" in kinds(verdict)


def test_two_live_tiles_in_one_slot():
    v = prepare()
    where = addresses(v.kernel, planning.plan(v.kernel, v.found, Wish("separate"), "sm_80").plan)
    verdict = judge(v.kernel, v.kernel, {**where, "S": where["P"]})
    assert {"clobbered", "differs"} <= kinds(verdict)
    fault = next(f for f in verdict.faults if f.kind == "clobbered")
    assert set(fault.buffers) == {"S", "P"} and fault.element is not None and fault.line


def swapped(kernel: Kernel, k: int) -> Kernel:
    stage = kernel.stages[0]
    body = list(stage.body)
    body[k : k + 2] = body[k + 1], body[k]
    return with_stages(kernel, (replace(stage, body=tuple(body)), *kernel.stages[1:]))


def test_a_swapped_pair_of_dependent_statements():
    """The tile has an older value, so nothing unwritten is read; the output still differs."""
    kernel = small(
        BOTH, f"copy: {X} -> a", "fill: 1 -> b", each("b[i, j] = exp(a[i, j])"), f"copy: b -> {Y}"
    )
    where = {"a": rows(0), "b": rows(1024)}
    assert judge(kernel, kernel, where).ok
    assert kinds(judge(kernel, swapped(kernel, 1), where)) == {"differs"}
    assert "unwritten" in kinds(judge(kernel, swapped(small(BOTH, *CHAIN), 0), where))


def test_a_load_that_moves_up_over_the_use_before_it():
    again = "x[c*16:(c+1)*16, 16:32]"
    both = (each("b[i, j] = a[i, j]"), f"copy: {again} -> a", each("b[i, j] = b[i, j] - a[i, j]"))
    kernel = small(BOTH, f"copy: {X} -> a", *both, f"copy: b -> {Y}")
    where = {"a": rows(0), "b": rows(1024)}
    assert kinds(judge(kernel, swapped(kernel, 1), where)) == {"differs"}


def test_no_where_hides_a_poisoned_value():
    """Under a condition on data both sides count; under one on indices the side taken."""
    where = {"a": rows(0), "b": rows(0)}
    for cond, right in (("i >= 0", True), ("a[i, j] > 0", False)):
        lines = (
            f"copy: {X} -> b",
            f"copy: {X} -> a",
            each(f"a[i, j] = where({cond}, a[i, j], b[i, j])"),
        )
        kernel = small(BOTH, *lines, f"copy: a -> {Y}")
        assert judge(kernel, kernel, where).ok is right


def test_a_map_that_races_with_itself():
    turned = small(BOTH, f"copy: {X} -> a", each("b[i, j] = a[j, i]"), f"copy: b -> {Y}")
    assert kinds(judge(turned, turned, {"a": rows(0), "b": rows(0)})) == {"race"}
    mixed = small(
        tiles(a="float16", b="float32"),
        f"copy: {H} -> a",
        each("b[i, j] = a[i, j]"),
        f"copy: b -> {Y}",
    )
    assert "race" in kinds(judge(mixed, mixed, {"a": rows(0, 2), "b": rows(0, 4)}))
    spread = Address(0, (64, 4), 2)  # each half-size element within the element it becomes
    assert judge(mixed, mixed, {"a": spread, "b": rows(0, 4)}).ok


def test_two_assignments_of_one_loop_that_race():
    """As statements of their own they may share; as one parallel loop they may not."""
    both = "map: {i: 16, j: 16}\n      do:\n        - b[i, j] = a[j, i]\n        - d[i, j] = b[i, j] * 3"
    kernel = small(
        tiles(a="float32", b="float32", d="float32"), f"copy: {X} -> a", both, f"copy: d -> {Y}"
    )
    where = {"a": rows(0), "b": rows(1024), "d": rows(0)}
    ids = [tuple(s.id for s in kernel.leaves() if not isinstance(s, Copy))]
    assert judge(kernel, kernel, where).ok
    assert kinds(judge(kernel, kernel, where, together=ids)) == {"race"}


def test_a_copy_onto_its_own_source():
    kernel = small(BOTH, f"copy: {X} -> a", "copy: a -> b", f"copy: b -> {Y}")
    assert judge(kernel, kernel, {"a": rows(0), "b": rows(0)}).ok
    assert "overlap" in kinds(judge(kernel, kernel, {"a": rows(0), "b": rows(64)}))


def test_running_sum_in_place_and_a_shifted_one():
    kernel = small(BOTH, f"copy: {X} -> a", "cumsum: a -> b\n      axis: 0", f"copy: b -> {Y}")
    assert judge(kernel, kernel, {"a": rows(0), "b": rows(0)}).ok
    assert "overlap" in kinds(judge(kernel, kernel, {"a": rows(0), "b": rows(4)}))


def test_a_tile_loaded_ahead():
    """In a pipelined loop a load of the next iteration may come before the last use in this one."""
    path = ROOT / "tests" / "specs" / "double_buffered.yaml"
    v = driver.load(path).variants[0]
    where = addresses(v.kernel, planning.plan(v.kernel, v.found, Wish("separate"), "sm_80").plan)
    assert judge(v.kernel, v.kernel, where).ok
    for name in ("a_s", "b_2"):
        verdict = judge(v.kernel, v.kernel, {**where, "b_s": where[name]})
        assert "pipelined" in kinds(verdict)
    assert judge(v.kernel, v.kernel, {**where, "y_s": where["b_s"]}).ok


def test_bytes_of_two_values_are_no_value():
    """A float32 tile read as float16 halves, or half overwritten, holds nothing."""
    pair = tiles(a="float32", b="float16")
    lines = (f"copy: {X} -> a", f"copy: {H} -> b", f"copy: a -> {Y}", f"copy: b -> {Z}")
    kernel = small(pair, *lines)
    verdict = judge(kernel, kernel, {"a": rows(0), "b": rows(1022, 2)})
    assert {f.element for f in verdict.faults if f.kind == "clobbered"} == {(15, 15)}


@pytest.mark.parametrize(
    "address",
    [
        None,
        rows(2),
        rows(-4),
        Address(0, (4,), 4),
        rows(0, 2),
        Address(0, (60, 4), 4),
        Address(0, (0, 4), 4),
    ],
)
def test_addresses_that_no_memory_has(address):
    kernel = small(BOTH, *CHAIN)
    where = {"b": rows(4096)} | ({"a": address} if address else {})
    assert kinds(judge(kernel, kernel, where)) == {"address"}


def test_raw_lines_keep_what_they_may():
    """A raw write may keep part of the old value, so that value must still be there."""
    raw = "raw: T.copy(a, b)\n      reads: [a]\n      writes: [b]"
    kernel = small(
        tiles(a="float32", b="float32", d="float32"),
        f"copy: {X} -> b", f"copy: {X} -> d", each("a[i, j] = exp(d[i, j])"), raw, f"copy: b -> {Y}",
    )  # fmt: skip
    where = {"a": rows(0), "b": rows(1024), "d": rows(2048)}
    assert judge(kernel, kernel, where).ok
    assert kinds(judge(kernel, kernel, {**where, "d": rows(1024)})) == {"differs"}
    assert "overlap" in kinds(judge(kernel, kernel, {**where, "a": rows(1024)}))
    first = small(BOTH, f"copy: {X} -> a", raw, f"copy: b -> {Y}")
    assert judge(first, first, {"a": rows(0), "b": rows(1024)}).ok


# -- sizes, verdicts, independence -----------------------------------------------------------------


def test_sizes_have_blocks_rounds_and_tails():
    v = prepare()
    assert judging.trial_sizes(v.kernel) == {"B": 1, "H": 1, "T": 100}
    loop = driver.load(ROOT / "tests" / "specs" / "two_loops.yaml").variants[0].kernel
    sizes = judging.trial_sizes(loop)
    assert math.ceil(sizes["T"] / 64) == 2 and math.ceil(sizes["N"] / 64) == 3
    assert all(n % 64 for n in sizes.values())


def test_a_verdict_is_data_and_the_same_every_time():
    kernel = small(BOTH, *CHAIN)
    where = {"a": rows(0), "b": rows(16)}
    first, second = judge(kernel, kernel, where, seed=3), judge(kernel, kernel, where, seed=3)
    assert first == second and not first.ok
    data = json.loads(json.dumps(first.as_dict()))
    assert (
        data["ok"] is False
        and "race" in {f["kind"] for f in data["faults"]}
        and data["sizes"] == {"T": 25}
    )


def test_the_judge_shares_no_code_with_what_it_judges():
    """Of gdngen it imports the model, expressions and itself."""
    own = {f"gdngen.judge.{x}" for x in "judge replay state arena symbols field".split()}
    for name in own:
        tree = ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gdngen"):
                whole = {f"{node.module}.{a.name}" for a in node.names}
                taken = whole if node.module.count(".") < 2 else {node.module}
                allowed = own | {"gdngen.model.model", "gdngen.language.expr"}
                assert taken <= allowed, f"{name} imports {taken}"
            elif isinstance(node, ast.Import):
                assert not any(
                    a.name.startswith(("gdngen", "torch", "tilelang")) for a in node.names
                )


def test_sizes_are_small_where_a_loop_counts_what_is_left_for_its_block():
    """Two blocks of four chunks, the second half full; how many rounds a block has hangs on which it is."""
    kernel = driver.load(ROOT / "specs" / "forward_prepare.yaml").variants[0].kernel
    assert judging.trial_sizes(kernel)["NC"] == 6
