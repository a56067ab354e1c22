"""Storage maps: what they show is the plan, nothing lies on anything else, and every text has room."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import pytest

from gdngen import cli, driver
from gdngen.devices import device, devices
from gdngen.plan import plan as planning
from gdngen.plan.plan import Wish
from gdngen.show import drawing, maps, maptext

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"
MOST = Wish(objective="bytes", allow_reload=True, allow_views=True)
LETTER = 0.602  # of the size of a letter, the width of one in the fonts asked for

# A spec, a variant of it (None: the first), a target and a wish: loops, branches, roles, staged tiles,
# asynchronous copies, the compiler's merging, views, strips, second loads.
CASES = [
    ("specs/prepare.yaml", "prepare_c64_k64_v64_float16", "sm_80", Wish()),
    ("specs/prepare.yaml", "prepare_c64_k64_v64_float16", "sm_80", Wish(objective="bytes")),
    ("specs/prepare.yaml", "prepare_c64_k64_v64_float16", "sm_80", MOST),
    ("specs/prepare.yaml", "prepare_c64_k128_v256_float32", "sm_90", MOST),
    ("specs/prepare.yaml", "prepare_c64_k128_v128_float32", "sm_80", Wish(objective="bytes")),
    ("specs/prepare.yaml", "prepare_c64_k64_v64_float32", "sm_80", MOST),
    ("specs/prepare.yaml", "prepare_c64_k128_v128_float16", "sm_80", MOST),
    ("specs/prepare_blocked.yaml", "prepare_blocked_c64_k128_v128_bfloat16", "sm_80", Wish()),
    ("specs/prepare_blocked.yaml", "prepare_blocked_c64_k128_v128_bfloat16", "sm_90", Wish()),
    ("specs/forward.yaml", None, "sm_90", Wish()),
    ("specs/forward_hopper.yaml", None, "sm_90", Wish()),
    ("specs/decode.yaml", None, "sm_80", Wish()),
    ("specs/l2norm.yaml", None, "sm_80", Wish()),
    ("specs/examples/matmul.yaml", None, "sm_80", Wish()),
    ("specs/examples/softmax.yaml", None, "sm_90", Wish()),
    ("specs/examples/two_pass.yaml", None, "sm_90", Wish()),
    ("tests/specs/forty.yaml", None, "sm_80", Wish()),
    ("tests/specs/forty.yaml", None, "sm_80", Wish("share")),
    ("tests/specs/both_arms.yaml", None, "sm_80", Wish()),
    ("tests/specs/double_buffered.yaml", None, "sm_90", Wish()),
]

LONG = """\
kernel: a_kernel_with_a_name_as_long_as_a_name_may_be_in_a_spec_of_gdn_x
dims: [C]
runtime: [T]
dtypes: {io: null}
variants:
  forall: {C: 64, io: [float16]}
tensors:
  x: {role: in, shape: [T, C], dtype: io}
  y: {role: out, shape: [T, C], dtype: io}
grid: {c: "ceildiv(T, C)"}
threads: 128
targets: [sm_80]
buffers:
  TILE_A: {scope: shared, shape: [C, C], dtype: io}
  TILE_B: {scope: shared, shape: [C, C], dtype: io}
  z: {scope: shared, shape: [C, C], dtype: io}
stages:
  a_stage_of_loading_everything_that_there_is_to_load:
    - copy: x[c*C:(c+1)*C, :] -> TILE_A
  another_stage_that_is_longer_in_its_name_than_in_its_work:
    - map: {i: C, j: C}
      do:
        - TILE_B[i, j] = TILE_A[j, i]
    - map: {i: C, j: C}
      do:
        - z[i, j] = TILE_B[i, j] * 2
    - copy: z -> y[c*C:(c+1)*C, :]
""".replace("TILE_A", "a" + "_tile_with_a_name" * 3).replace(
    "TILE_B", "b" + "_tile_with_a_name" * 3
)


@cache
def made(spec: str, variant: str | None, target: str, wish: Wish):
    """The map of a case, the plan that it is of, and both programs."""
    loaded = driver.load(ROOT / spec)
    v = next(v for v in loaded.variants if variant in (None, v.kernel.module))
    wish = driver.wished(v, wish)
    p = planning.plan(v.kernel, v.found, wish, target)
    return maps.storage_map(v, wish, target, device(target)), p, v


@cache
def svg(*case) -> str:
    return drawing.svg(made(*case)[0])


@pytest.fixture(scope="module")
def long_names(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.yaml"
    path.write_text(LONG)
    return path


def of_file(path: Path) -> maps.StorageMap:
    (v,) = driver.load(path).variants
    return maps.storage_map(v, Wish(), "sm_80", device("sm_80"))


def meets(one, other) -> bool:
    """Whether two bars lie on the same bytes at one time."""
    if one.first >= other.end or other.first >= one.end:
        return False
    return any(a < d and c < b for a, b in one.runs for c, d in other.runs)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{Path(c[0]).stem}-{c[2]}")
def test_a_map_is_its_plan(case):
    m, p, v = made(*case)
    tiles = [b for b in m.after.bars if b.kind != maps.BARRIERS]
    assert m.after.asked == p.plan.asked == max(b.end for b in m.after.bars) + _padding(m.after)
    assert sorted(b.name for b in tiles) == sorted(b.name for b in p.kernel.shared())
    for b in tiles:
        own = p.kernel.buffer(b.name)
        versions = b.rounds if not own.stages else 1
        assert b.bytes == own.bytes * versions and (b.dtype, b.shape) == (own.dtype, own.shape)
    if m.before:
        names = [b.name for b in m.before.bars if b.kind != maps.BARRIERS]
        assert sorted(names) == sorted(b.name for b in v.kernel.shared())
    else:
        assert v.kernel.roles
    for side in m.sides:
        bars = side.bars
        assert not [(a.name, b.name) for i, a in enumerate(bars) for b in bars[:i] if meets(a, b)]
        assert all(s.live <= side.asked for s in side.steps)
        assert side.steps[side.peak].live == max(s.live for s in side.steps)


def _padding(side) -> int:
    """Bytes behind the last tile: the whole is rounded up to 16."""
    left = side.asked - max(b.end for b in side.bars)
    assert 0 <= left < 16
    return left


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{Path(c[0]).stem}-{c[2]}")
def test_every_change_has_its_place(case):
    m, p, _ = made(*case)
    assert sorted(n for _, n in m.after.marks) == list(range(len(p.plan.changes)))
    gone = {n for _, n in m.before.marks} if m.before else set()
    left = {i for i, c in enumerate(p.plan.changes) if c.kind in ("moved", "direct")}
    assert gone == left


def test_what_the_plan_of_prepare_does_is_where_it_does_it():
    m, _, _ = made(*CASES[1])
    assert (m.before.asked, m.after.asked) == (82_432, 41_472)
    assert [c.text for c in m.changes] == [
        "copy v -> v_s (line 50) moved from 'load' to 'apply_k', before line 77 (8,192 bytes less)",
        "u leaves through k_s, idle by then (at no cost in bytes)",
    ]
    lines = [[side.steps[i].line for i, n in side.marks] for side in m.sides]
    assert lines == [[50], [50, 85]]
    assert [side.steps[side.marks[0][0]].stage for side in m.sides] == ["load", "apply_k"]
    bars = {b.name: b for b in m.after.bars}
    assert bars["u_out"].kind == "staged" and bars["v_s"].kind == "author"
    assert bars["u_out"].first == bars["v_s"].first == bars["k_s"].first == 16_896
    assert (m.after.steps[m.after.peak].line, m.after.steps[m.after.peak].live) == (60, 41_216)


def test_a_tile_computed_in_place_takes_over_in_the_middle_of_a_statement():
    m, _, _ = made("tests/specs/forty.yaml", None, "sm_80", Wish())
    bars = {b.name: b for b in m.after.bars}
    (one,), (other,) = bars["a0"].runs, bars["d0"].runs
    assert one == (0, 2.5) and other == (2.5, 4) and bars["a0"].first == bars["d0"].first


def test_a_tile_loaded_again_is_said_to_be():
    m, p, _ = made("specs/prepare.yaml", "prepare_c64_k64_v64_float32", "sm_80", MOST)
    assert "reload" in [c.kind for c in p.plan.changes]
    (again,) = [b for b in m.after.bars if b.kind == "reload"]
    number = [c.change.kind for c in m.changes].index("reload")
    (at,) = [i for i, n in m.after.marks if n == number]
    assert again.name == "k_s_again" and at == again.start == again.writes[0]
    assert m.after.steps[at].text == "copy k -> k_s_again"


def test_strips_are_a_loop():
    m, p, _ = made("specs/prepare.yaml", "prepare_c64_k128_v128_float16", "sm_80", MOST)
    assert [c.kind for c in p.plan.changes].count("strips") == 2
    loops = [b.texts[0] for b in m.after.brackets if b.kind == "loop"]
    assert loops == ["repeat x 6", "loop x 2", "loop x 2"]
    assert [b.texts[0] for b in m.before.brackets if b.kind == "loop"] == ["repeat x 6"]


# -- SVG -----------------------------------------------------------------------------------------


def boxes(root: ET.Element):
    """Groups with a rectangle: kind, rectangle, texts, element."""
    for g in root.iter(f"{SVG}g"):
        r = g.find(f"{SVG}rect")
        place = tuple(float(r.get(k)) for k in ("x", "y", "width", "height"))
        yield g.get("class").split(), place, g.findall(f"{SVG}text"), g


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{Path(c[0]).stem}-{c[2]}")
def test_svg_shows_every_tile_apart_and_every_text_has_room(case):
    m = made(*case)[0]
    check_svg(svg(*case), m)


def test_long_names_have_room(long_names):
    m = of_file(long_names)
    text = drawing.svg(m)
    check_svg(text, m)
    for b in m.after.bars:
        assert b.name in text and f"{b.bytes:,}" in text


def check_svg(text: str, m: maps.StorageMap) -> None:
    root = ET.fromstring(text)
    width, height = float(root.get("width")), float(root.get("height"))
    bars = [(place, g) for kind, place, _, g in boxes(root) if "bar" in kind]
    shown = [
        (g.get("data-name"), int(g.get("data-first")), int(g.get("data-bytes"))) for _, g in bars
    ]
    runs = [(b.name, b.first, b.bytes) for side in m.sides for b in side.bars for _ in b.runs]
    assert shown == runs
    for i, ((x, y, w, h), g) in enumerate(bars):
        assert h >= drawing.LINE - 1.2 and w > 0 and x >= 0 and x + w <= width and y + h <= height
        for (a, b, c, d), other in bars[:i]:
            apart = x >= a + c - 0.11 or a >= x + w - 0.11 or y >= b + d - 0.11 or b >= y + h - 0.11
            assert apart, (g.get("data-name"), other.get("data-name"))
    for kind, (x, y, w, h), texts, _ in boxes(root):
        for t in texts:
            room = h if t.get("transform") else w
            assert len(t.text) * 11 * LETTER <= room + 0.2, (kind, t.text)
    for t in root.findall(f"{SVG}text"):
        size = 15 if t.get("class") == "title" else 11
        long, x = len(t.text) * size * LETTER, float(t.get("x"))
        left = x - long if t.get("text-anchor") == "end" else x
        assert left >= 0 and left + long <= width + 0.2, t.text
        assert float(t.get("y")) < height
    asked = [int(g.get("data-asked")) for kind, *_, g in boxes(root) if "gauge" in kind]
    assert asked == [side.asked for side in m.sides]
    for name in devices():
        assert re.search(rf"[ >]{name}[ <]", text), name
    peaks = [int(g.get("data-live")) for kind, *_, g in boxes(root) if "peaking" in kind]
    assert peaks == [max(s.live for s in side.steps) for side in m.sides]


def test_height_follows_bytes():
    root = ET.fromstring(svg(*CASES[1]))
    heights = {g.get("data-name"): place[3] for kind, place, _, g in boxes(root) if "bar" in kind}
    assert heights["S"] == pytest.approx(2 * heights["k_s"], rel=0.05)
    assert heights["g_s"] == drawing.LINE - 1


def test_names_are_escaped():
    m = made(*CASES[0])[0]
    bars = tuple(maps.replace(b, name="<b>&\"'") if b.name == "S" else b for b in m.after.bars)
    text = drawing.svg(maps.replace(m, variant="<script>", after=maps.replace(m.after, bars=bars)))
    names = {g.get("data-name") for kind, *_, g in boxes(ET.fromstring(text)) if "bar" in kind}
    assert "<b>&\"'" in names and "<script" not in text


# -- HTML ----------------------------------------------------------------------------------------


def test_a_page_has_every_variant_and_needs_nothing_else(tmp_path, capsys):
    path = tmp_path / "maps.html"
    assert cli.main(["plan", str(ROOT / "specs/decode.yaml"), "--html", str(path)]) == 0
    text = path.read_text()
    variants = driver.load(ROOT / "specs/decode.yaml").variants
    for v in variants:
        assert text.count(f"<h2>{v.kernel.module}, ") == len(v.kernel.targets) == 2
    assert text.count("<svg ") == 2 * len(variants)
    rest = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//|<script|<link|<img|@import|url\(", rest)
    for link in re.findall(r'href="#([^"]+)"', text):
        assert text.count(f'id="{link}"') == 1
    assert len(re.findall(r"<style>", text)) == 1, "one style for all maps"
    assert "prefers-color-scheme: dark" in text


def test_pages_are_the_same_to_the_byte(tmp_path):
    command = "import sys; from gdngen.cli import main; sys.exit(main(sys.argv[1:]))"
    texts = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.html"
        args = ["plan", "specs/decode.yaml", "--html", str(path), "--map"]
        done = subprocess.run(
            [sys.executable, "-c", command, *args],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts.append((path.read_bytes(), done.stdout))
    assert texts[0] == texts[1]


# -- text and the command line -------------------------------------------------------------------


def test_the_map_as_text():
    lines = maptext.lines(made(*CASES[1])[0])
    after = {line[61:].split()[0]: line[61:].rstrip() for line in lines[3:12] if line[61:].split()}
    assert after["k_s"].endswith("W==R=======R.......")
    assert after["v_s"].endswith("............W==R...")
    assert after["u_out"].endswith(".................WR")
    assert all(line.isascii() for line in lines)
    assert max(map(len, lines[:14])) <= maptext.WIDTH + 2


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{Path(c[0]).stem}-{c[2]}")
def test_text_has_a_row_for_every_tile(case):
    m = made(*case)[0]
    text = "\n".join(maptext.lines(m))
    for b in m.after.bars:
        assert re.search(rf"\b{b.name} +{b.first:,} +{b.bytes:,} ", text), b.name


def run(*args):
    return cli.main([str(a) for a in args])


def test_one_variant_is_drawn_and_others_are_asked_for(tmp_path, capsys):
    prepare, out = ROOT / "specs/prepare.yaml", tmp_path / "map.svg"
    name = "prepare_c64_k64_v64_float16"
    assert run("plan", prepare, "--variant", name, "--svg", out) == 0
    assert out.read_text() == drawing.svg(maps.replace(made(*CASES[0])[0], spec=prepare.as_posix()))
    assert run("plan", prepare, "--svg", out) == 2
    assert "21" in (said := capsys.readouterr().err) and "--variant" in said
    assert run("plan", prepare, "--variant", "prepare_c64_k64_v64_float61", "--map") == 2
    assert f"did you mean '{name}'?" in capsys.readouterr().err
    assert run("plan", prepare, "--variant", f"{name}_match", "--map") == 0
    assert "after: match, 49,664 bytes" in capsys.readouterr().out
    assert run("plan", prepare, "--variant", name, "--svg", tmp_path) == 2
    assert run("plan", prepare, "--variant", name, "--target", "sm_80") == 0
    assert len([x for x in capsys.readouterr().out.splitlines() if x.startswith(f"{name} ")]) >= 1


def test_what_does_not_fit_a_device_fails(capsys):
    name = "prepare_c64_k64_v64_float16"
    args = ["plan", ROOT / "specs/prepare.yaml", "--map", "--variant", name, "--policy", "separate"]
    assert run(*args) == 0
    assert "does not fit" not in capsys.readouterr().out
    assert (
        run(*args, "--set", "DK=128", "--set", "DV=128") == 2
    ), "another variant than the one named"
    capsys.readouterr()
    wide = [*args[:4], "prepare_c64_k128_v128_float32", *args[5:], "--device", "metax-c500"]
    assert run(*wide) == 1
    assert "does not fit metax-c500" in capsys.readouterr().out


# -- a browser -----------------------------------------------------------------------------------

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MEASURE = """
<script>
const wrong = [];
for (const g of document.querySelectorAll("svg g")) {
  const box = g.querySelector("rect").getBoundingClientRect();
  for (const t of g.querySelectorAll("text")) {
    const text = t.getBoundingClientRect();
    if (text.left < box.left - 1 || text.right > box.right + 1) wrong.push(t.textContent);
  }
}
const page = document.querySelector("svg").getBoundingClientRect();
for (const t of document.querySelectorAll("svg > text")) {
  const text = t.getBoundingClientRect();
  if (text.left < page.left - 1 || text.right > page.right + 1) wrong.push(t.textContent);
}
document.title = "measured " + document.querySelectorAll("svg g.bar").length + JSON.stringify(wrong);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to measure texts in")
@pytest.mark.parametrize("case", [CASES[i] for i in (1, 5, 10, 16)], ids=lambda c: c[0])
def test_a_browser_finds_every_text_in_its_box(case, tmp_path):
    m = made(*case)[0]
    page = tmp_path / "page.html"
    page.write_text(drawing.html("measured", [m]).replace("</body>", MEASURE + "</body>"))
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=2000,2000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"<title>measured (\d+)(.*?)</title>", done.stdout)
    assert found, done.stderr[-500:]
    assert int(found[1]) == sum(len(b.runs) for side in m.sides for b in side.bars)
    assert found[2] == "[]"
