"""`gdngen inspect` on hand-written kernels: bytes, lives, sharing, fragments, and what it can't read."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from fragment_patterns import PATTERNS

from gdngen.cli import main
from gdngen.devices import device
from gdngen.errors import GdngenError
from gdngen.inspect import asked, files
from gdngen.inspect.inspection import inspected

HERE = Path(__file__).parent
ROOT = HERE.parent
KERNELS = HERE / "inspect"
MANIFEST = json.loads((ROOT / "generated" / "manifest.json").read_text())
SIZES = {"M": "1024", "N": "1024", "K": "1024"}
ATTENTION = {"batch": "1", "heads": "8", "seq_len": "2048", "dim": "128"}

HEAD = """\
import tilelang
import tilelang.language as T

N = 64


@tilelang.jit
def made(D=64, dtype="float16"):
    @T.prim_func
    def kernel(X: T.Tensor([N, D], dtype), B: T.Tensor([N], "float32"), Y: T.Tensor([N, D], dtype)):
        with T.Kernel(1, threads=128) as c:
"""


def look(path, on="sm_80", **settings):
    (kernel,) = files.load(path, None, settings)
    return inspected(kernel, device(on))


@pytest.fixture
def kernel(tmp_path):
    """Inspects a kernel whose body is given."""

    def read(body: str, on: str = "sm_80", **settings):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body), " " * 12))
        return look(path, on, **settings)

    return read


def said(one, severity="error"):
    return [(d.where.line, d.what) for d in one.diagnostics if d.severity == severity]


def line_of(path, text, nth=0):
    lines = Path(path).read_text().splitlines()
    return [i for i, line in enumerate(lines, 1) if text in line][nth]


# -- generated kernels: the source alone says what the plan says ---------------------------------


@pytest.mark.parametrize("path", MANIFEST)
def test_generated_kernels_ask_for_what_is_planned(path):
    """Every byte of the manifest comes out of the kernel's text, and no alarm with it."""
    (kernel,) = files.load(ROOT / "generated" / path, None, {})
    assert not kernel.notes
    for target, planned in MANIFEST[path]["targets"].items():
        one = inspected(kernel, device(target))
        assert (one.asked.bytes, one.asked.static) == (
            planned["dynamic"] + planned["static"],
            planned["static"],
        )
        roles = "hopper" in path or "carry" in path
        exact = not roles and "l2norm_r32_d256" not in path
        assert one.asked.exact == exact, one.asked.estimated
        alarms = [d for d in one.diagnostics if "fit" not in d.what]
        assert not alarms, alarms[0]


def test_a_slot_that_a_generated_kernel_reads_too_late_is_an_error(tmp_path):
    """The text of a right kernel, its aliases changed so that two lives meet."""
    path = ROOT / "generated/prepare/prepare_c64_k64_v64_float16.py"
    text = path.read_text()
    assert "k_beta = P  #" in text
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace("k_beta = P  #", "k_beta = S  #"))
    one = look(broken)
    first, *_ = one.errors
    assert "'S' was written on line" in first.what and "'k_beta'" in first.what
    assert first.where.line == line_of(broken, "T.gemm(S, k_beta")


# -- kernels by hand -------------------------------------------------------------------------------


def test_three_tiles_of_the_review_become_one():
    path = KERNELS / "prepare_apart.py"
    one = look(path)
    assert (one.asked.plain, one.asked.merged, one.asked.exact) == (82432, 49664, True)
    assert one.peak.bytes == 49664 and one.peak.line == line_of(
        path, "T.Parallel(block_C, block_C)"
    )
    (share,) = one.shares
    assert (share.host.name, share.saved) == ("P_shared", 32768)
    assert [g.name for g in share.guests] == ["k_beta_shared", "v_beta_shared"]
    assert one.then.plain == 49664 and not one.errors
    assert [(x.tile.name, x.use) for x in one.peak.later] == [
        ("v_shared", line_of(path, "for i, j in T.Parallel(block_C, dim_v)"))
    ]


def test_the_reviews_device_takes_it_only_where_the_compiler_merges():
    one = look(KERNELS / "prepare_apart.py", "metax-c500")
    ((_, what),) = said(one, "warning")
    assert "fits by the compiler's own merging only" in what and "82,432" in what
    wide = look(KERNELS / "prepare_apart.py", "metax-c500", dim_k="128", dim_v="128")
    ((_, what),) = said(wide)
    assert "does not fit" in what and "98,816" in what


def test_what_is_shared_by_hand_is_as_small_side_by_side(tmp_path):
    text = (KERNELS / "prepare_apart.py").read_text()
    path = tmp_path / "by_hand.py"
    for name in ("k_beta_shared", "v_beta_shared"):
        text = re.sub(rf"{name} = T.alloc_shared\(.*\)", f"{name} = P_shared", text)
    path.write_text(text)
    one = look(path, "metax-c500")
    assert (one.asked.plain, one.then, one.diagnostics) == (49664, None, ())
    (tile,) = [r.tile for r in one.rows if r.tile.name == "P_shared"]
    assert tile.names == ("P_shared", "k_beta_shared", "v_beta_shared")


def test_beta_in_a_fragment_is_warned_of():
    path = KERNELS / "prepare_fragment.py"
    one = look(path)
    lines = [line for line, what in said(one, "warning") if "fragment 'beta_shared'" in what]
    assert lines == [
        line_of(path, "* beta_shared[i_s]"),
        line_of(path, "v_shared[i, j] * beta_shared"),
    ]
    assert "256 bytes" in one.diagnostics[0].hint


def test_beta_in_a_fragment_beside_shared_tiles_is_an_error():
    path = KERNELS / "scale_fragment.py"
    ((line, what),) = said(look(path))
    assert line == line_of(path, "* beta[i]") and "No thread" not in what and "wrongly" in what


@pytest.mark.parametrize(
    ("target", "merged", "static"), [("sm_80", 49408, 0), ("sm_90", 50176, 48)]
)
def test_matmul_with_an_epilogue(target, merged, static):
    one = look(KERNELS / "matmul.py", target, **SIZES)
    assert (one.asked.merged, one.asked.static, one.asked.exact) == (merged, static, True)
    copies = {r.tile.name: r.copies for r in one.rows}
    assert copies == {"A_shared": 3, "B_shared": 3, "C_shared": 1, "bias_shared": 1}
    assert one.peak.bytes == 49408 and not one.errors
    # Of a tile that a pipelined loop loads there are several: a name can't share it.
    assert not one.shares


@pytest.mark.parametrize("causal", ["True", "False"])
def test_attention_with_an_online_softmax(causal):
    one = look(KERNELS / "attention.py", is_causal=causal, **ATTENTION)
    assert not one.diagnostics and not one.kernel.notes
    assert (one.asked.plain, one.asked.merged, one.asked.exact) == (65536, 49152, True)


def test_a_pipeline_that_tilelang_cannot_count(tmp_path):
    """Of a causal attention's loop the length hangs on the block."""
    settings = ATTENTION | {"is_causal": "True", "num_stages": "2"}
    path = KERNELS / "attention.py"
    ((_, what),) = said(look(path, **settings), "warning")
    assert "pipelined loop of a length known at launch only" in what
    assert not look(path, "sm_90", **settings).diagnostics
    waiting = tmp_path / "waiting.py"
    key = "pass_configs = {"
    waiting.write_text(path.read_text().replace(key, key + '"tirx.use_async_copy": False, '))
    assert not look(waiting, **settings).diagnostics


@pytest.mark.long
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("prepare_apart.py", {}),
        ("prepare_fragment.py", {}),
        ("prepare_apart.py", {"dim_k": "128", "dim_v": "256"}),
        ("scale_fragment.py", {}),
        ("matmul.py:main", SIZES),
        ("matmul.py", SIZES | {"num_stages": "2", "block_K": "64", "dtype": "bfloat16"}),
        ("attention.py", ATTENTION),
        ("attention.py", ATTENTION | {"num_stages": "2", "dim": "64"}),
    ],
)
def test_bytes_are_those_of_tilelang(name, settings, target, capsys):
    pytest.importorskip("tilelang")
    given = [x for n, v in settings.items() for x in ("--set", f"{n}={v}")]
    main(["inspect", str(KERNELS / name), "--target", target, "--lower", "--json", *given])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["exact"] and row["lowered"] == row["asked"]


# -- fragments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PATTERNS)
def test_fragment_pattern(name, tmp_path):
    path = tmp_path / "pattern.py"
    path.write_text(PATTERNS[name].text)
    found = [d for d in look(path).diagnostics if "never used" not in d.what]
    assert {d.severity for d in found} == ({PATTERNS[name].said} - {None}), found


@pytest.mark.long
@pytest.mark.parametrize("name", PATTERNS)
def test_what_tilelang_makes_of_a_fragment_pattern(name, tmp_path):
    """The table of patterns is true: each is refused, or run on the CPU and compared."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("tilelang")
    from gdngen.emulator import build, run
    from gdngen.verify import cpu, lowering

    path = tmp_path / "pattern.py"
    path.write_text(PATTERNS[name].text)
    torch.manual_seed(0)
    tensors = {"X": torch.randn(64, 64), "B": torch.randn(64), "Y": torch.zeros(64, 64)}
    try:
        lowered = lowering.lower(path, "sm_80")
    except lowering.LoweringError:
        assert PATTERNS[name].truth == "refused"
        return
    meant = {n: t.clone() for n, t in tensors.items()}
    cpu.compile(path).run(meant)
    truth = "right"
    for order in (0, 1):
        built = build(lowered.source, lowered.dynamic_bytes)
        got = run(built, {p.name: tensors[p.name] for p in built.kernel.params}, (1,), order=order)
        off = (got.outputs["Y"] - meant["Y"]).abs().max() / meant["Y"].abs().max()
        if got.findings or not off < 1e-2:
            truth = "wrong"
    assert truth == PATTERNS[name].truth


# -- lives and aliases -----------------------------------------------------------------------------


def test_an_alias_whose_lives_meet(kernel):
    one = kernel("""\
        a = T.alloc_shared([N, D], dtype)
        b = a
        T.copy(X, a)
        T.copy(X, b)
        T.copy(a, Y)
        """)
    ((line, what),) = said(one)
    assert line == 16 and "'a' was written on line 14, and 'b'" in what and "on line 15" in what


@pytest.mark.parametrize(
    "body",
    [
        # one after the other
        "T.copy(X, a)\nT.copy(a, Y)\nT.copy(X, b)\nT.copy(b, Y)\n",
        # in place
        "T.copy(X, a)\nfor i, j in T.Parallel(N, D):\n    b[i, j] = a[i, j] * 2\nT.copy(b, Y)\n",
        # in a loop, each round anew
        "for _ in T.serial(4):\n    T.copy(X, a)\n    T.copy(a, Y)\n    T.copy(X, b)\n    T.copy(b, Y)\n",
        # beside one another
        "T.copy(X[:, 0:32], a[:, 0:32])\nT.copy(X[:, 32:64], b[:, 32:64])\nT.copy(a[:, 0:32], Y[:, 0:32])\n"
        "T.copy(b[:, 32:64], Y[:, 32:64])\n",
        # another name for what is there
        "T.copy(X, a)\nT.copy(b, Y)\n",
        # written anew by halves
        "T.copy(X, a)\nT.copy(a, Y)\nT.copy(X, b)\nT.copy(b, Y)\nT.copy(X[:, 0:32], a[:, 0:32])\n"
        "T.copy(X[:, 32:64], a[:, 32:64])\nT.copy(a, Y)\n",
    ],
)
def test_aliases_that_are_right(kernel, body):
    one = kernel("a = T.alloc_shared([N, D], dtype)\nb = a\n" + body)
    assert not one.diagnostics and not one.kernel.notes


@pytest.mark.parametrize(
    "body",
    [
        # carried by a loop
        "T.copy(X, a)\nfor _ in T.serial(4):\n    T.copy(a, Y)\n    T.copy(X, b)\n    T.copy(b, Y)\n",
        # halves that meet
        "T.copy(X[:, 0:32], a[:, 0:32])\nT.copy(X[:, 16:48], b[:, 16:48])\nT.copy(a[:, 0:32], Y[:, 0:32])\n",
        # in an arm
        "T.copy(X, a)\nif B[0] > 0:\n    T.copy(X, b)\n    T.copy(b, Y)\nT.copy(a, Y)\n",
    ],
)
def test_aliases_that_are_wrong(kernel, body):
    one = kernel("a = T.alloc_shared([N, D], dtype)\nb = a\n" + body)
    assert any("'a' was written" in what for _, what in said(one))


def test_a_loop_keeps_what_it_reads_alive(kernel):
    body = """\
        a = T.alloc_shared([N, D], dtype)
        b = T.alloc_shared([N, D], dtype)
        T.copy(X, a)
        {head}
            T.copy(a, Y)
            T.copy(X, b)
            T.copy(b, Y)
        """
    assert kernel(body.format(head="if B[0] > 0:")).shares
    assert not kernel(body.format(head="for _ in T.serial(4):")).shares


def test_a_narrower_tile_takes_a_slice(kernel):
    one = kernel("""\
        a = T.alloc_shared([N, 32], dtype)
        b = T.alloc_shared([N, D], dtype)
        T.copy(X[:, 0:32], a)
        T.copy(a, Y[:, 0:32])
        T.copy(X, b)
        T.copy(b, Y)
        """)
    (share,) = one.shares
    assert (share.host.name, share.columns, share.saved) == ("a", 64, 4096)
    assert one.then.plain == 8192


def test_other_dtypes_and_running_sums_are_left_alone(kernel):
    assert not kernel("""\
        a = T.alloc_shared([N, D], "float32")
        b = T.alloc_shared([N, D], dtype)
        T.copy(X, a)
        T.copy(a, Y)
        T.copy(X, b)
        T.copy(b, Y)
        """).shares


def test_what_nothing_wrote(kernel):
    one = kernel("""\
        a = T.alloc_shared([N, D], dtype)
        f = T.alloc_fragment([N, N], "float32")
        for _ in T.Pipelined(4, num_stages=2):
            T.copy(X, a)
            T.gemm(a, a, f, transpose_B=True)
        T.copy(f, Y)
        """)
    assert said(one) == [(16, "fragment tile 'f' is added to before anything is written into it")]
    assert "clear_accum=True" in one.errors[0].hint


def test_warps_side_by_side_are_not_judged(kernel):
    one = kernel("""\
        a = T.alloc_shared([N, D], dtype)
        b = T.alloc_shared([N, D], dtype)
        tx = T.get_thread_binding()
        if tx < 64:
            T.copy(X, a)
            T.copy(a, Y)
        else:
            T.copy(X, b)
            T.copy(b, Y)
        """)
    assert one.kernel.side_by_side and not one.shares and not one.asked.exact


# -- reading ---------------------------------------------------------------------------------------


def test_sizes_come_from_arguments_constants_and_the_command_line(kernel):
    body = "a = T.alloc_shared([N, max(D, 2 * N)], dtype)\nT.copy(X, a[:, 0:D])\n"
    assert kernel(body).asked.plain == 64 * 128 * 2
    assert kernel(body, D="256", dtype="float32").asked.plain == 64 * 256 * 4
    assert kernel(body, N="32").asked.plain == 32 * 64 * 2


@pytest.mark.parametrize(("wide", "names"), [("64", ("P", "b")), ("128", ("P",))])
def test_a_condition_on_sizes_takes_its_arm(kernel, wide, names):
    one = kernel(
        """\
        P = T.alloc_shared([N, N], dtype)
        if N == D == 64:
            b = P
        else:
            b = T.alloc_shared([N, D], dtype)
        T.copy(X, b)
        T.copy(b, Y)
        """,
        D=wide,
    )
    assert one.rows[0].tile.names == names and len(one.rows) == (1 if wide == "64" else 2)


def test_what_is_not_understood_is_said_with_its_line(kernel):
    one = kernel("""\
        a = T.alloc_shared([N, D], dtype)
        T.copy(X, a)
        T.call_extern("handle", "mystery", a)
        strange(a)
        T.copy(a, Y)
        """)
    notes = [(n.where.line, n.what) for n in one.kernel.notes]
    assert notes == [
        (14, "what T.call_extern does to a is not known: taken as reading and writing it"),
        (15, "what strange does to a is not known: taken as reading and writing it"),
    ]
    assert not one.asked.exact and "not every statement was understood" in one.asked.estimated


def test_a_view_makes_merging_an_estimate(kernel):
    one = kernel("""\
        a = T.alloc_shared([N, 64], "float32")
        v = T.view(a, [N, 128], "float16")
        T.copy(X, a)
        T.copy(a, Y)
        """)
    assert any("seen in two shapes" in why for why in one.asked.estimated) and not one.asked.unsure


def test_pass_configs_are_read(tmp_path):
    path = tmp_path / "k.py"
    text = HEAD.replace("@tilelang.jit\n", "@tilelang.jit(pass_configs={OFF: True})\n")
    body = "            a = T.alloc_shared([N, D], dtype)\n            T.copy(X, a)\n"
    path.write_text(text.replace("{OFF", '{"tl.disable_shared_memory_reuse"') + body)
    assert look(path).asked.reuse == "off"
    key = "{tilelang.PassConfigKey.TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE"
    path.write_text(text.replace("{OFF", key) + body)
    assert look(path).asked.reuse == "aggressive"


# -- the command -----------------------------------------------------------------------------------


def run(capsys, *args):
    code = main(["inspect", *map(str, args)])
    return code, *capsys.readouterr()


def test_the_command_shows_places_and_a_way_out(capsys):
    code, out, _ = run(capsys, KERNELS / "scale_fragment.py")
    assert code == 1
    assert re.search(r"scale_fragment\.py:25:42: error: fragment 'beta'", out)
    assert (
        "\n                                           ^^^^^^^\n  help: keep it in shared memory"
        in out
    )
    code, out, _ = run(capsys, KERNELS / "prepare_apart.py", "--device", "metax-c500")
    assert code == 0 and "line 30: k_beta_shared = P_shared" in out
    assert (
        "share: k_beta_shared and v_beta_shared can lie on P_shared: their lives never meet" in out
    )


def test_the_command_as_data(capsys):
    _, out, _ = run(capsys, KERNELS / "prepare_apart.py", "--json")
    (row,) = json.loads(out)
    assert row["shares"] == [
        {
            "host": "P_shared",
            "guests": ["k_beta_shared", "v_beta_shared"],
            "columns": None,
            "saved": 32768,
        }
    ]
    assert row["then"] == {"side_by_side": 49664, "merged": 49664}
    assert row["fits"]["metax-c500"] and row["exact"]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["matmul.py:mian"], "no kernel is named 'mian'; did you mean 'main'?"),
        (["matmul.py", "--set", "block_L=3"], "nothing is named 'block_L' to be set"),
        (["prepare_apart.py", "--set", "block_C=x"], "the size of 'k_shared' is not known"),
        (["nothing.py"], "No such file"),
        (["."], "is a folder"),
        (["attention.py"], "the size of 'Q_shared' is not known"),
        (["matmul.py", "--target", "sm_81"], "unknown device 'sm_81'"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(capsys, monkeypatch, args, error):
    monkeypatch.chdir(KERNELS)
    code, out, err = run(capsys, *args)
    assert code == 2 and error in err and not out and "Traceback" not in err


def test_what_is_missing_is_named(capsys):
    code, _, err = run(capsys, KERNELS / "attention.py")
    where = line_of(KERNELS / "attention.py", "Q_shared = T.alloc_shared")
    assert f"attention.py:{where}:24: error: the size of 'Q_shared' is not known" in err
    assert "help: --set dim=VALUE" in err


def test_a_file_that_is_no_python(tmp_path, capsys):
    path = tmp_path / "k.py"
    path.write_text("def f(:\n")
    code, _, err = run(capsys, path)
    assert code == 2 and "k.py:1:7: error: not Python" in err and "^" in err
    path.write_bytes(b"\xff\xfe")
    assert run(capsys, path)[0] == 2
    path.write_text("x = 1\n")
    assert "has no kernel" in run(capsys, path)[2]


def test_nothing_of_the_file_is_run(tmp_path, capsys):
    path = tmp_path / "k.py"
    text = HEAD + "            a = T.alloc_shared([N, D], dtype)\n            T.copy(X, a)\n"
    path.write_text("raise SystemExit(9)\n" + text)
    assert run(capsys, path)[0] == 0


@pytest.mark.parametrize("cut", range(0, 2600, 97))
def test_a_file_cut_short_is_read_or_refused(tmp_path, cut):
    """Whatever stands in a file, the answer is a report or a located error."""
    path = tmp_path / "k.py"
    lines = (KERNELS / "attention.py").read_text()
    path.write_text(lines[:cut])
    try:
        files.load(path, None, ATTENTION)
    except GdngenError as e:
        assert str(e)


def test_bytes_with_sharing_are_what_the_shared_source_asks_for(tmp_path):
    """What the report promises is what comes out once its lines are written into the source."""
    text = (KERNELS / "prepare_apart.py").read_text()
    one = look(KERNELS / "prepare_apart.py", "sm_90")
    for name in ("k_beta_shared", "v_beta_shared"):
        text = re.sub(rf"{name} = T.alloc_shared\(.*\)", f"{name} = P_shared", text)
    path = tmp_path / "done.py"
    path.write_text(text)
    (kernel,) = files.load(path, None, {})
    after = asked.asked(kernel, "sm_90")
    assert (after.plain, after.merged) == (one.then.plain, one.then.merged)
