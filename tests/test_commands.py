"""Every command of the documentation runs, and says what it is said to."""

import re
import shlex
from pathlib import Path

import pytest

from gdngen import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Not run here, and why: the rest of a line that starts so.
ELSEWHERE = {
    "gdngen bench": "needs a GPU; tests/test_bench.py and test_whole.py run it on a stand-in",
    "gdngen inspect kernel.py": "kernel.py stands for anybody's; tests/test_inspect.py",
}
TAKEN = "tests/inspect specs".split()  # folders that commands name


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.splitlines():
                words = line.split("#")[0].strip()
                if words.startswith("gdngen "):
                    found.append((page.name, words))
    return found


def is_elsewhere(words: str) -> bool:
    return any(words.startswith(start) for start in ELSEWHERE)


HERE = [c for c in commands() if not is_elsewhere(c[1])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the commands of a page may write, with what they read."""
    made = tmp_path_factory.mktemp("folder")
    for name in TAKEN:
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).symlink_to(ROOT / name)
    return made


REFUSING = (
    "gdngen plan specs/prepare.yaml --device metax-c500",
)  # three variants do not fit: exit 1


@pytest.mark.parametrize("page, words", HERE, ids=[w for _, w in HERE])
def test_a_command_of_the_documentation_runs(page, words, folder, monkeypatch, capsys):
    """In the order of the pages: what one writes another reads."""
    monkeypatch.chdir(folder)
    code = cli.main(shlex.split(words)[1:])
    said = capsys.readouterr()
    assert code == (words in REFUSING), said
    file = re.search(r"--(?:svg|html) (\S+)", words)
    assert (folder / file[1]).read_text().strip() if file else said.out


def test_what_is_not_run_here_is_still_there():
    for start in ELSEWHERE:
        assert any(words.startswith(start) for _, words in commands()), start


def test_the_bytes_of_the_story_are_those_of_the_plans(monkeypatch, capsys):
    """docs/concepts.md: four ways to plan one kernel."""
    monkeypatch.chdir(ROOT)
    rows = dict(
        re.findall(r"^\| `(--.*?)` \| ([\d,]+) \|", (ROOT / "docs/concepts.md").read_text(), re.M)
    )
    assert set(rows) == {"--policy separate", "--policy match", "--objective bytes"}
    told = {"--policy separate": "separate", "--policy match": "match", "--objective bytes": "lean"}
    for options, size in rows.items():
        given = (
            "plan specs/prepare.yaml --variant prepare_c64_k64_v64_float16 --target sm_80 --json"
        )
        assert cli.main([*given.split(), *options.split()]) == 0
        assert f'{int(size.replace(",", ""))}' in capsys.readouterr().out, told[options]
