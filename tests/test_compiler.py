"""The model of TileLang's shared memory against the real thing, lowered without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import random_kernels

from gdngen.plan import compiler, packing, pipeline
from gdngen.plan.compiler import Copy, Gemm, Program, Tile
from gdngen.verify import lowering

KIB = 1024
HALF = Tile((64, 64), "float16")


def frozen(*statements: str) -> list[frozenset[str]]:
    return [frozenset(statement.split()) for statement in statements]


# Packing


def test_plain_layout_goes_by_name_and_alignment():
    total, offsets = packing.plain_layout({"b": 100, "S": 64, "a_1": 20}, {"b": 1024})
    assert offsets == {"S": 0, "a_1": 64, "b": 1024}
    assert total == 1024 + 112


def test_one_storage_is_neither_merged_nor_rounded():
    assert packing.plain_layout({"g": 20}) == (20, {"g": 0})
    assert packing.merged_layout(frozen("g"), {"g": 20}) == (20, {"g": 0})


@pytest.mark.parametrize(
    ("statements", "sizes", "total"),
    [
        (["a", "a", "b", "b"], {"a": 16, "b": 16}, 16),
        (["a b"], {"a": 16, "b": 16}, 32),
        (["a", "b", "a", "b"], {"a": 16, "b": 16}, 32),
        (["a", "a b", "b"], {"a": 16, "b": 16}, 32),
        (["a", "b", "a b", "c", "c"], {"a": 16, "b": 16, "c": 32}, 32),
        (["a", "a b", "b c", "c"], {"a": 16, "b": 16, "c": 32}, 64),
    ],
)
def test_merged_layout(statements, sizes, total):
    sizes = {name: size * KIB for name, size in sizes.items()}
    got, offsets = packing.merged_layout(frozen(*statements), sizes)
    assert got == total * KIB
    assert set(offsets) == set(sizes)


# The rules, case by case


def test_warpgroup_operands_are_aligned_on_hopper_only():
    gemm = Gemm("a", "b", 64, 64, 64, "float16")
    program = Program({"a": HALF, "b": HALF}, (gemm,), (), 128)
    assert compiler.alignments(program, "sm_90") == {"a": 1024, "b": 1024}
    for target in ("sm_80", "sm_100", "sm_120", "gfx942"):
        assert compiler.alignments(program, target) == {}
    for other in (replace(gemm, m=32), replace(gemm, dtype="float32"), replace(gemm, b=None)):
        assert not compiler.is_wgmma(other, 128, "sm_90")
    assert not compiler.is_wgmma(gemm, 96, "sm_90")
    assert compiler.is_wgmma(replace(gemm, a=None, transpose_b=True), 256, "sm_90")


def test_stores_are_tma_from_hopper_on():
    copy = Copy("s", "float16", (None, None, 64), (1, 64, 64), store=True)
    for target, want in {"sm_89": False, "sm_90": True, "sm_120": True, "gfx942": False}.items():
        assert compiler.is_tma(copy, HALF, target) == want
    assert not compiler.is_tma(replace(copy, store=False), HALF, "sm_90")
    assert compiler.is_tma(replace(copy, store=False), HALF, "sm_90", producer=True)
    assert not compiler.is_tma(replace(copy, disable_tma=True), HALF, "sm_90")
    assert not compiler.is_tma(replace(copy, dtype="float32"), HALF, "sm_90")
    assert not compiler.is_tma(replace(copy, extents=(1, 64, 60)), HALF, "sm_90")
    assert not compiler.is_tma(replace(copy, shape=(None, None, 3, 12)), HALF, "sm_90")


@pytest.mark.parametrize(
    ("columns", "rows", "align"),
    [(64, 64, 1024), (32, 64, 512), (16, 64, 256), (24, 64, 128), (64, 12, 128)],
)
def test_a_stored_tile_is_aligned_to_its_swizzle(columns, rows, align):
    tile = Tile((rows, columns), "float16")
    copy = Copy("s", "float16", (None, None, columns), (1, rows, columns), store=True)
    program = Program({"s": tile}, (), (copy,), 128)
    assert compiler.alignments(program, "sm_90") == {"s": align}


def test_a_narrow_slice_of_a_swizzled_tile_cannot_be_stored_by_tma():
    copy = Copy("s", "float16", (None, None, 32), (1, 64, 32), store=True)
    program = Program({"s": HALF}, (), (copy,), 128)
    assert compiler.refusals(program, "sm_90") == [
        "copy of 32 of 64 columns of s: needs disable_tma"
    ]
    assert not compiler.refusals(program, "sm_80")


def test_covers():
    small = Gemm("a", "b", 16, 16, 16, "float16")
    assert compiler.covers(small, 64, "sm_80") and not compiler.covers(small, 128, "sm_80")
    assert compiler.covers(small, 64, "gfx942") and not compiler.covers(small, 128, "gfx942")
    odd = replace(small, m=96)
    assert compiler.covers(odd, 128, "sm_80") and not compiler.covers(odd, 128, "sm_90")


# Against lowered kernels


def offsets_of(source: str) -> dict[str, int]:
    alias = r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);"
    return {name: int(offset) for name, offset in re.findall(alias, source)}


def lowered(tmp_path, text: str, target: str, refusals: list[str]) -> lowering.Lowered | None:
    """What TileLang makes of a kernel; None where it refuses one that we say it will."""
    pytest.importorskip("tilelang")
    path = tmp_path / "tiny.py"
    path.write_text(text)
    if refusals:
        with pytest.raises(lowering.LoweringError):
            lowering.lower(path, target)
        return None
    return lowering.lower(path, target)


def check_operands(tmp_path, seed: int, target: str) -> None:
    text, program = random_kernels.operands(seed)
    real = lowered(tmp_path, text, target, compiler.refusals(program, target))
    if real is None:
        return
    sizes = {name: tile.bytes for name, tile in program.tiles.items()}
    total, offsets = packing.plain_layout(sizes, compiler.alignments(program, target))
    assert (real.dynamic_bytes, real.static_bytes) == (total, 0), text
    assert offsets_of(real.source) == offsets, text


def check_lifetimes(tmp_path, seed: int, target: str) -> None:
    text, statements, sizes, loops = random_kernels.lifetimes(seed)
    real = lowered(tmp_path, text, target, [])
    total, offsets = packing.merged_layout(statements, sizes, loops=loops)
    assert real.dynamic_bytes == total, text
    assert offsets_of(real.source) == (offsets if len(offsets) > 1 else {}), text


def check_pipelined(tmp_path, seed: int, target: str) -> None:
    text, program, loop, symbolic = random_kernels.pipelined(seed)
    producer = pipeline.is_specialised(loop, program.tiles, target)
    loads = pipeline.producer_loads(loop, program.tiles, target)
    copies = tuple(copy for copy in program.copies if copy.store or copy in loads)
    program = replace(program, copies=copies, producer=producer)
    refusals = compiler.refusals(program, target)
    if symbolic and pipeline.needs_static_trips(loop, program.tiles, target):
        refusals = ["trips"]
    real = lowered(tmp_path, text, target, refusals)
    if real is None:
        return
    kept = pipeline.versions(loop, target)
    sizes = {name: tile.bytes * kept.get(name, 1) for name, tile in program.tiles.items()}
    total, offsets = packing.plain_layout(sizes, compiler.alignments(program, target))
    static = pipeline.barrier_bytes(loop, program.tiles, target)
    assert (real.dynamic_bytes, real.static_bytes) == (total, static), text
    assert offsets_of(real.source) == offsets, text


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("check", [check_operands, check_pipelined])
def test_sampled(tmp_path, check, seed, target):
    check(tmp_path, seed, target)


@pytest.mark.parametrize("seed", range(6))
def test_merging_sampled(tmp_path, seed):
    check_lifetimes(tmp_path, seed, "sm_80")


@pytest.mark.long
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942"])
@pytest.mark.parametrize("seed", range(100, 140))
@pytest.mark.parametrize("check", [check_operands, check_pipelined])
def test_sweep(tmp_path, check, seed, target):
    check(tmp_path, seed, target)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_merging_sweep(tmp_path, seed):
    check_lifetimes(tmp_path, seed, "sm_80")
