"""Live ranges, interference and element coverage, on small programs where they can be read off."""

import re
from pathlib import Path

import pytest
from small_spec import read

from gdngen.model.analysis import Analysis
from gdngen.model.model import Copy, Kernel
from gdngen.plan import plan as planning
from gdngen.render import render

SPECS = Path(__file__).parent.parent / "specs"

HEAD = """\
kernel: program
dims: [N]
runtime: [T]
variants: {forall: {N: 64}}
tensors:
  x: {role: in, shape: [T, N], dtype: float32}
  y: {role: out, shape: [T, N], dtype: float32}
grid: {c: "ceildiv(T, N)"}
buffers:
  a: {scope: shared, shape: [N, N], dtype: float32}
  b: {scope: shared, shape: [N, N], dtype: float32}
  d: {scope: shared, shape: [N, N], dtype: float32}
  f: {scope: fragment, shape: [N, N], dtype: float32}
stages:
"""
LOAD, STORE = "copy: x[c*N:(c+1)*N, :] ->", "-> y[c*N:(c+1)*N, :]"


def program(stages: str) -> tuple[Kernel, Analysis]:
    """The kernel of some stages, each '  name:' and its statements; tiles that they leave out go."""
    used = set(re.findall(r"\b[abdf]\b", stages))
    head = "".join(
        line + "\n"
        for line in HEAD.splitlines()
        if not (m := re.match(r"  ([abdf]):", line)) or m[1] in used
    )
    got = read(head + stages.replace("LOAD", LOAD).replace("STORE", STORE))
    assert not got.errors, "\n".join(map(str, got.errors))
    return got.kernels[0]


def lives(stages: str) -> dict[str, tuple[str, str]]:
    kernel, found = program(stages)
    return {b.name: found.stages(b.name) for b in kernel.buffers}


def test_a_value_lives_from_its_write_to_its_last_read():
    stages = """
  one:
    - LOAD a
  two:
    - copy: a -> b
  three:
    - copy: a -> d
  four:
    - copy: b STORE
    - copy: d STORE
"""
    assert lives(stages) == {"a": ("one", "three"), "b": ("two", "four"), "d": ("three", "four")}


def test_a_full_overwrite_starts_a_new_value():
    _, found = program("""
  one:
    - LOAD a
    - copy: a -> f
  two:
    - LOAD b
    - copy: b -> d
  three:
    - LOAD a
    - copy: a STORE
    - copy: f STORE
    - copy: d STORE
""")
    second = [leaf for leaf in found.order if leaf.stage == "two"]
    assert not any("a" in found.live[leaf.id] for leaf in second)
    assert not found.interfere("a", "b")  # b lives between a's two values


def test_a_partial_write_keeps_the_old_value():
    _, found = program("""
  one:
    - LOAD a
  two:
    - LOAD b
    - copy: b STORE
  three:
    - fill: 0 -> a[0:32, :]
    - copy: a STORE
""")
    assert found.interfere("a", "b")


def test_a_guarded_map_keeps_the_old_value():
    text = """
  one:
    - LOAD a
  two:
    - LOAD b
    - copy: b STORE
  three:
    - map: {i: N, j: N}
      GUARD
      do: ['a[i, j] = 0']
    - copy: a STORE
"""
    assert program(text.replace("GUARD", "if: i > j"))[1].interfere("a", "b")
    assert not program(text.replace("      GUARD\n", ""))[1].interfere("a", "b")


def test_accumulation_reads_what_it_adds_to():
    text = """
  one:
    - LOAD a
    - fill: 0 -> f
  two:
    - LOAD b
    - copy: b STORE
  three:
    - gemm: a @ a -> f
    - copy: f STORE
"""
    overwritten = program(text)[1]
    added = program(text.replace("a @ a ->", "a @ a +>"))[1]
    middle = [leaf.id for leaf in added.order if leaf.stage == "two"]
    assert all("f" in added.live[i] for i in middle)
    assert not any("f" in overwritten.live[i] for i in middle)


LOOP = """
  before:
    - LOAD a
  loop:
    - repeat: 4
      do:
        - copy: a -> b
        - LOAD d
        - copy: d STORE
  after:
    - copy: b STORE
"""


def test_a_tile_read_in_a_loop_and_written_before_it_lives_for_the_whole_loop():
    _, found = program(LOOP)
    inside = [leaf.id for leaf in found.order if leaf.stage == "loop"]
    assert all("a" in found.live[i] for i in inside)
    assert found.interfere("a", "d")


def test_a_tile_that_only_a_loop_uses_dies_within_a_round():
    _, found = program(LOOP)
    first, *_, last = [leaf.id for leaf in found.order if leaf.stage == "loop"]
    assert "d" not in found.live[first] and "d" in found.live[last]


def test_a_value_carried_around_a_loop_lives_for_all_of_it():
    _, found = program("""
  before:
    - LOAD a
  loop:
    - repeat: 4
      do:
        - copy: a -> b
        - LOAD d
        - copy: d STORE
        - copy: b -> a
  after:
    - copy: a STORE
""")
    assert found.interfere("b", "d")  # b is read after d's life in the round
    assert found.interfere("a", "b")
    ids = {leaf.id: leaf for leaf in found.order if leaf.stage == "loop"}
    dead = [i for i in ids if "a" not in found.live[i]]
    assert (
        len(dead) == 2
    )  # while d comes and goes, a's old value is read and its new one not yet there


def test_arms_of_a_branch_share_their_storage():
    _, found = program("""
  one:
    - when: c == 0
      do:
        - LOAD a
        - copy: a STORE
      else:
        - LOAD b
        - copy: b STORE
""")
    assert not found.interfere("a", "b")


def test_a_value_that_one_arm_replaces_lives_through_the_branch():
    _, found = program("""
  one:
    - LOAD a
    - when: c == 0
      do:
        - LOAD b
        - copy: b STORE
        - LOAD a
  two:
    - copy: a STORE
""")
    load_a, load_b, store_b, again, _ = found.order
    assert all("a" in found.live[leaf.id] for leaf in (load_a, again))
    # The arm that runs replaces it, so while b lives there it is dead.
    assert not any("a" in found.live[leaf.id] for leaf in (load_b, store_b))


def test_tiles_that_a_pipelined_loop_loads_share_with_nothing():
    _, found = program("""
  one:
    - LOAD d
    - copy: d STORE
  loop:
    - pipelined: {k: 4}
      do:
        - LOAD a
        - copy: a -> f
        - LOAD b
        - copy: b -> f
  two:
    - copy: f STORE
""")
    assert {"a", "b"} <= found.private
    assert found.interfere("a", "b") and found.interfere("a", "d")


def test_a_statement_needs_its_source_and_its_target_at_once():
    _, found = program("\n  one:\n    - LOAD a\n    - copy: a -> b\n    - copy: b STORE\n")
    assert found.interfere("a", "b")
    size, leaf = found.peak({"a": 1, "b": 2})
    assert size == 3 and isinstance(leaf, Copy) and leaf.src.name == "a"


# -- elements that nothing writes ----------------------------------------------------------------

WRITES = """
  one:
    - WRITE
  two:
    - READ
"""


@pytest.mark.parametrize(
    "write, read_, words",
    [
        ("fill: 0 -> a[0:32, :]", "copy: a STORE", "read from 0 to 63 along axis 0, but only 0 to 31"),
        ("fill: 0 -> a[:, 32:64]", "copy: a STORE", "read from 0 to 63 along axis 1, but only 32 to 63"),
        ("fill: 0 -> a[0:32, :]", "copy: a[0:32, :] -> y[c*N:c*N+32, :]", None),
        ("fill: 0 -> a[0:32, :]", "copy: a[16:48, :] -> y[c*N:c*N+32, :]", "read from 16 to 47"),
        ("{loop: {k: 2}, do: [fill: '0 -> a[k*32:(k+1)*32, :]']}", "copy: a STORE", None),
        ("{loop: {k: 3}, do: [fill: '0 -> a[k*16:(k+1)*16, :]']}", "copy: a STORE", "only 0 to 47"),
        ("{loop: {k: 64}, do: [fill: '0 -> a[k, :]']}", "copy: a STORE", None),
        ("{loop: {k: c}, do: [fill: '0 -> a[min(k, 63), :]']}", "{loop: {k: c}, do: [copy: 'a STORE']}", None),
        ("{map: {i: 32, j: N}, do: ['a[i, j] = 0']}", "copy: a STORE", "only 0 to 31"),
        ("{map: {i: 32, j: N}, do: ['a[2*i, j] = 0', 'a[2*i + 1, j] = 0']}", "copy: a STORE", None),
        ("{map: {i: 32, j: N}, do: ['a[i, j] = 0']}", "{map: {i: N, j: N}, do: ['y[c*N+i, j] = a[i, j]']}", "only 0 to 31"),
        ("{map: {i: 32, j: N}, do: ['a[i, j] = 0']}", "{map: {i: N, j: N}, do: ['y[c*N+i, j] = where(i < 32, a[i, j], 0)']}", None),
        ("{map: {i: 32, j: N}, do: ['a[i, j] = 0']}", "{map: {i: N, j: N}, if: i < 32, do: ['y[c*N+i, j] = a[i, j]']}", None),
        ("{loop: {k: 2}, do: [fill: '0 -> a[k*16:(k+1)*16, :]']}",
         "{loop: {k: 4}, do: [{copy: 'a[k*16:(k+1)*16, :] -> y[c*N:c*N+16, :]', when: k < 2}]}", None),
    ],
)  # fmt: skip
def test_a_read_of_elements_that_nothing_writes(write, read_, words):
    body = WRITES.replace("WRITE", write).replace("READ", read_).replace("STORE", STORE)
    head = re.sub(r"  [bdf]: .*\n", "", HEAD)
    errors = [e.what for e in read(head + body).errors if "never used" not in e.what]
    assert not errors if words is None else [words in e for e in errors] == [True], errors


# -- names mean nothing --------------------------------------------------------------------------

TEXT = (SPECS / "prepare.yaml").read_text()


def renaming(text: str) -> dict[str, str]:
    """New names for all that a spec names; their alphabetical order, which the compiler's own layout
    follows, stays."""
    got = read(text, "prepare.yaml")
    assert not got.errors
    kernel = got.kernels[0][0]
    names = {b.name for b in kernel.buffers} | {t.name for t in kernel.tensors}
    names |= {s.name for s in kernel.stages} | set(kernel.dims) | {kernel.name}
    return {name: f"{name}_{i}q" for i, name in enumerate(sorted(names))}


def renamed(text: str, names: dict[str, str]) -> str:
    """Whole words replaced, but for keys of the language and what is said in comments and docs."""
    out = []
    for line in re.sub(r"doc: \|\n(  .*\n)+", "doc: none\n", text).splitlines():
        line = re.sub(r"#.*|, doc: ('[^']*'|[^,}]*)|^reference:.*", "", line)
        out.append(re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), line))
    return "\n".join(out) + "\n"


NAMES = renaming(TEXT)
PLAIN, OTHER = read(renamed(TEXT, {}), "prepare.yaml"), read(renamed(TEXT, NAMES), "prepare.yaml")


def test_renaming_everything_changes_no_analysis():
    assert not OTHER.errors and len(PLAIN.kernels) == len(OTHER.kernels) == 21
    for (_, a), (_, b) in zip(PLAIN.kernels, OTHER.kernels):
        assert [leaf.id for leaf in a.order] == [leaf.id for leaf in b.order]
        for leaf in a.order:
            assert {NAMES[n] for n in a.live[leaf.id]} == b.live[leaf.id]
        assert {NAMES[n] for n in a.private} == b.private
        for name in NAMES.keys() & {n for leaf in a.order for n in a.live[leaf.id]}:
            assert tuple(NAMES[s] for s in a.stages(name)) == b.stages(NAMES[name])


@pytest.mark.parametrize("policy", ["separate", "match", "share", "widen"])
def test_renaming_everything_changes_no_plan_and_no_text(policy):
    back = {new: old for old, new in NAMES.items()}
    wish = planning.Wish(policy)
    for (k, a), (l, b) in list(zip(PLAIN.kernels, OTHER.kernels))[::5]:
        p, q = planning.plan(k, a, wish, "sm_80"), planning.plan(l, b, wish, "sm_80")
        assert [tuple(NAMES[t] for t in s.tenants) for s in p.plan.slots] == [
            s.tenants for s in q.plan.slots
        ]
        assert (p.plan.dynamic, p.plan.static, p.plan.merged) == (
            q.plan.dynamic,
            q.plan.static,
            q.plan.merged,
        )
        assert _plain(render.render(p)) == _plain(render.render(q), back)


def _plain(text: str, names: dict[str, str] = {}) -> str:
    """The text with names put back, without titles of stages and blanks that align columns."""
    text = re.sub(r"^ *# .*$", "", text, flags=re.M)
    text = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), text)
    return re.sub(r" +", " ", text)
