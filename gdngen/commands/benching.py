"""`gdngen bench`: how fast it is, on a GPU."""

import sys
import tempfile
from pathlib import Path

from gdngen import driver
from gdngen.commands import given
from gdngen.errors import GdngenError
from gdngen.render import write


def add(commands) -> None:
    made = given.command(
        commands, "bench", _bench, "time kernels on a GPU, beside others and the memory floor"
    )
    made.add_argument(
        "--shape", action="append", default=[], metavar="NAME=SIZE,...",
        help="runtime sizes, usual ones for those left out; several are timed one after the other",
    )  # fmt: skip
    made.add_argument(
        "--peers",
        default="all",
        help="a list such as fla,flashqla,neumann; all or none (default: all)",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the same as data")
    made.add_argument("--svg", type=Path, metavar="FILE", help="write a bar chart")
    made.add_argument("--jobs", type=int, metavar="N", help="compile so many kernels at once")


def _bench(options) -> int:
    from gdngen.bench import bench, building, chart, gpu, peers, shapes, timings

    def tell(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr, flush=True)

    wanted = [shapes.parse(text) for text in options.shape] or [{}]
    asked = peers.chosen(options.peers)
    specs = given.specs(options)
    functions = [p for p in specs if driver.is_pipeline(p)]
    cases = _cases(options, functions, wanted)
    kernels = len(functions) < len(specs)
    gpu.require()
    loaded = given.load(options) if kernels else []
    with tempfile.TemporaryDirectory() as folder:
        jobs = building.jobs(loaded, given.wish(options), gpu.target(), Path(folder))
        found = bench.run(jobs, wanted if kernels else [], asked, tell, options.jobs)
    if cases:
        from gdngen.bench import whole

        names = ",".join(p.name for p in asked) if options.peers != "all" else "all"
        found = timings.joined(found, whole.run(cases, names, tell))
    if options.json:
        write.replace(options.json, timings.dumps(found))
    if options.svg:
        write.replace(options.svg, chart.svg(found))
    print(timings.table(found))
    return 1 if bench.failed(found) else 0


def _cases(options, functions: list[Path], wanted: list[dict[str, int]]) -> list:
    """What to time of pipelines: a forward and a step of decoding on each shape. With kernels' specs
    beside them, whose runtime sizes --shape names, on the usual ones."""
    if not functions:
        return []
    from gdngen.bench import whole

    for path in functions:
        if path.stem != whole.PIPELINE:
            raise GdngenError(
                f"error: {path}: only functions of {whole.PIPELINE} are timed\n"
                "  help: name the specs of its kernels"
            )
    settings = given.settings(options)
    io = settings.pop("io", "bfloat16")
    alone = len(functions) == len(given.specs(options))
    if settings and alone:
        raise GdngenError(
            f"error: --set {next(iter(settings))}: functions have no such setting\n"
            "  help: --set io=float16; sizes are a --shape, say B=2,H=32,T=8192,DK=128"
        )
    return [
        whole.case(kind, sizes, io)
        for sizes in (wanted if alone else [{}])
        for kind in whole.FUNCTIONS
        if kind == "forward" or "T" not in sizes
    ]
