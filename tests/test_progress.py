"""What a long command says while it runs, and how it ends when it is stopped."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gdngen.render import write
from gdngen.show.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120  # seconds for what takes few


def on_terminal(args, cwd: Path, stop_at: bytes | None = None, **env) -> tuple[int, str]:
    """Exit code and screen of Python with these arguments; Ctrl-C is typed when `stop_at` is shown."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        env = clean | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "150"} | env
        os.execve(sys.executable, [sys.executable, *map(str, args)], env)
    shown, typed, end = b"", False, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            shown += (new := os.read(screen, 65536))
        except OSError:  # the terminal's way to say that nobody writes any more
            new = b""
        if not new:
            break
        if stop_at and not typed and stop_at in shown:
            os.write(screen, b"\x03")
            typed = True
    else:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(screen)
    return code, shown.decode(errors="replace")


def script(body: str) -> list[str]:
    head = "import sys, time\nfrom gdngen.show.progress import Progress, say\n"
    return ["-c", head + textwrap.dedent(body)]


SLOW = script("""
    for i in Progress(sys.stderr).over([1, 2, 3, 4], "kneading", lambda i: f"loaf {i}"):
        time.sleep(0.6)
    print("done")
""")


def test_a_terminal_shows_what_is_done_and_how_many_are_left(tmp_path):
    code, shown = on_terminal(SLOW, tmp_path, NO_COLOR="1")
    assert code == 0
    assert "kneading loaf 3" in shown and re.search(r"2/4", shown)
    assert "loaf 1" not in shown, "nothing is shown in the first second"
    assert shown.rstrip().endswith("done") and "\x1b[2K" in shown, "the bar goes when all is done"


def test_what_is_quick_shows_nothing(tmp_path):
    quick = script("list(Progress(sys.stderr).over(range(9), 'kneading'))")
    assert on_terminal(quick, tmp_path) == (0, "")


def colours(shown: str) -> list[str]:
    codes = (c for found in re.findall(r"\x1b\[([\d;]+)m", shown) for c in found.split(";"))
    return [c for c in codes if c[0] in "3489" and len(c) > 1]


def test_no_color(tmp_path):
    """For progress and for mistakes."""
    wrong = ["-m", "gdngen", "plan", "nowhere.yaml"]
    for args in (SLOW, wrong):
        assert colours(on_terminal(args, tmp_path)[1])
        assert not colours(on_terminal(args, tmp_path, NO_COLOR="1")[1])


def test_the_words_of_a_mistake_are_the_same_in_colour(tmp_path):
    (tmp_path / "bad.yaml").write_text("kernel: a\nthread: 1\n" + "x" * 200 + ": 1\n")
    args = ["-m", "gdngen", "plan", "bad.yaml"]
    _, shown = on_terminal(args, tmp_path)
    plain = subprocess.run(
        [sys.executable, *args], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stderr  # fmt: skip
    assert "\x1b" not in plain and "error: unknown key 'thread'" in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", shown).replace("\r\n", "\n") == plain


def test_elsewhere_it_is_silent():
    """Whatever is asked to look like a terminal."""
    stream = io.StringIO()
    assert list(Progress(stream).over([1, 2], "kneading")) == [1, 2]
    assert list(Progress(stream, quiet=True).over([1, 2], "kneading")) == [1, 2]
    assert stream.getvalue() == ""


def test_verbose_says_what_took_how_long():
    stream = io.StringIO()
    for _ in Progress(stream, verbose=True).over(["rye", "wheat"], "kneading"):
        time.sleep(0.1)
    lines = r"kneading rye: (\d+\.\d) s \(1/2\)\nkneading wheat: (\d+\.\d) s \(2/2\)\n"
    took = re.fullmatch(lines, stream.getvalue())
    assert took and all(float(t) >= 0.1 for t in took.groups())


def gdngen(*args, cwd=ROOT):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "gdngen", *map(str, args)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )


SOFTMAX = ROOT / "specs/examples/softmax.yaml"


def test_quiet_and_verbose(tmp_path):
    usual = gdngen("render", SOFTMAX, "-o", tmp_path / "a")
    quiet = gdngen("render", SOFTMAX, "-o", tmp_path / "b", "-q")
    verbose = gdngen("render", SOFTMAX, "-o", tmp_path / "c", "-v")
    assert "wrote " in usual.stdout and not usual.stderr
    assert quiet.stdout == f"6 kernels in {tmp_path / 'b'}: 9 files changed\n" and not quiet.stderr
    assert verbose.stdout == usual.stdout.replace(f"{tmp_path}/a", f"{tmp_path}/c")
    assert re.search(r"^planning softmax_r32_n64_float16: \d+\.\d s \(1/6\)$", verbose.stderr, re.M)
    assert gdngen("render", SOFTMAX, "-q", "-v").returncode == 2


# -- stopping ----------------------------------------------------------------------------------------


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


AT_ONCE = f"""
import sys
from gdngen.__main__ import main
from gdngen.show import progress

progress.SOON = 0
sys.argv = ["gdngen", "render", {str(ROOT / "specs/prepare_blocked.yaml")!r}, "-o", "out"]
sys.exit(main())
"""


@pytest.mark.parametrize("doing", ["planning", "formatting"])
def test_ctrl_c_ends_at_once_and_leaves_no_file(doing, tmp_path):
    code, shown = on_terminal(["-c", AT_ONCE], tmp_path, stop_at=doing.encode())
    assert code == 130, shown[-2000:]
    assert shown.rstrip().endswith("stopped") and "Traceback" not in shown
    assert left(tmp_path) == []


POOL = """
import sys, time
import gdngen.__main__ as entry
from gdngen import cli
from gdngen.pools import processes

def work():
    with processes(2) as pool:
        found = [pool.submit(time.sleep, 600) for _ in range(4)]
        print("at work", flush=True)
        found[0].result()

def command(argv=None):
    try:
        work()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130

if __name__ == "__main__":
    cli.main = command
    sys.exit(entry.main())
"""


@pytest.mark.parametrize("everybody", [True, False])
def test_processes_end_with_the_one_that_started_them(everybody, tmp_path):
    """Whether Ctrl-C reaches all of them, as on a terminal, or the first alone."""
    (tmp_path / "work.py").write_text(POOL)
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        began = subprocess.Popen(
            [sys.executable, "work.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
    assert began.stdout.readline() == b"at work\n"
    time.sleep(2)  # the workers are there, and sleep
    (os.killpg if everybody else os.kill)(began.pid, signal.SIGINT)
    assert began.wait(PATIENCE) == 130
    assert errors.read_text() == "stopped\n"
    assert began.stdout.read() == b"", "whoever holds the other end still lives"


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "a.py").write_text("before\n")
    monkeypatch.setattr(write.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write.replace(tmp_path / "a.py", "after\n")
    assert left(tmp_path) == ["a.py"] and (tmp_path / "a.py").read_text() == "before\n"
