"""The command line: ``jaxcascade run``, ``list``, ``plot``, ``compare`` and ``inspect``.

An error is one line on stderr and exit status 2. The modules that need jax are imported by the commands, once
the arguments have been read.
"""

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jaxcascade._version import __version__

_INTERRUPTED = 130
_FAILED = 2

Progress = Callable[[str, int, int], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, 2 after an error, 130 after an interrupt.

    Args:
      argv: the arguments, by default those of the process.
    """
    from jaxcascade._toml import one_line

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            arguments = _parser().parse_args(argv)
            arguments.argv = list(sys.argv[1:] if argv is None else argv)
            arguments.command(arguments)
            sys.stdout.flush()
        except KeyboardInterrupt as interrupt:
            print("jaxcascade: interrupted", *interrupt.args, file=sys.stderr, flush=True)
            if argv is None:  # as a program: XLA's threads go on, and crash an interpreter that shuts down
                os._exit(_INTERRUPTED)
            return _INTERRUPTED
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (ValueError, OSError, FloatingPointError, ImportError) as error:
            print(f"jaxcascade: error: {one_line(error)}", file=sys.stderr)
            return _FAILED
    return 0


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser():
    parser = _Parser(prog="jaxcascade", description="Batched JAX simulation of LLM cascades, queues and deferral.")
    parser.add_argument("--version", action="version", version=f"jaxcascade {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="run an experiment and write its results to a folder")
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("config", metavar="CONFIG.toml", nargs="?", help="the experiment")
    what.add_argument("--all", metavar="FOLDER", help="every experiment of a folder, and a page of them in DIR")
    run.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    run.add_argument("--seeds", metavar="N", type=int, help="number of seeds, instead of num_seeds")
    run.add_argument("--steps", metavar="T", type=int, help="horizon, instead of num_steps")
    run.add_argument("--seed", metavar="S", type=int, help="number from which all randomness derives")
    run.add_argument("--quick", action="store_true", help="take the values of the table [quick]")
    again = run.add_mutually_exclusive_group()
    again.add_argument("--overwrite", action="store_true", help="replace the results of an earlier run in DIR")
    again.add_argument("--resume", action="store_true", help="go on with an interrupted run in DIR, or start one")
    run.add_argument("--quiet", action="store_true", help="no progress and no tables")
    run.add_argument("--x64", action="store_true", help="compute in 64-bit floats")
    run.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_setting,
        help="put a TOML value in place of the file's, as in --set instance.gap=0.04; may be repeated",
    )
    run.add_argument("--memory", metavar="SIZE", help="most memory to take, as 2GiB; chunks of seeds are made to fit")
    run.add_argument(
        "--compilation-cache", metavar="DIR", help="keep compiled programs in DIR, where the next run finds them"
    )
    run.add_argument("--save-every", metavar="SECONDS", type=float, default=10.0, help="least time between two saves")
    shares = run.add_argument_group("many cores, devices and hosts", "the numbers stay the same, but for rounding")
    shares.add_argument("--devices", metavar="N", type=int, help="devices to use; splits a CPU into as many")
    shares.add_argument("--seed-chunk", metavar="N", type=int, help="most seeds a device runs at once")
    shares.add_argument(
        "--coordinator", metavar="HOST:PORT", help="of process 0 of several, or auto: ask the cluster (Slurm, ...)"
    )
    shares.add_argument("--num-processes", metavar="N", type=int, help="number of processes")
    shares.add_argument("--process-id", metavar="I", type=int, help="number of this process, from 0")
    run.set_defaults(command=_run)

    listing = commands.add_parser("list", help="systems, instances, policies, metrics and shipped logs")
    listing.set_defaults(command=_list)

    plot = commands.add_parser("plot", help="draw the figures of a run again")
    plot.add_argument("directory", metavar="DIR", help="folder of a run")
    plot.add_argument("--metric", metavar="M", help="draw this metric instead of the experiment's figures")
    plot.add_argument("--out", metavar="FILE", help="a single figure's .png, .pdf or .svg, by default in DIR")
    plot.set_defaults(command=_plot)

    compare = commands.add_parser("compare", help="final metrics of several runs side by side")
    compare.add_argument("directories", metavar="DIR", nargs="+", help="folder of a run")
    compare.set_defaults(command=_compare)

    inspect = commands.add_parser("inspect", help="what a data file is: models, rows, missing values, means")
    inspect.add_argument("file", metavar="FILE", help="a routing table, confidence or conversation log, or trace")
    inspect.set_defaults(command=_inspect)
    return parser


def _run(arguments):
    import jax

    from jaxcascade._compilation_cache import kept_programs
    from jaxcascade.devices import processes, set_cpu_devices

    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", before or arguments.x64)
    try:
        if arguments.devices is not None:
            set_cpu_devices(arguments.devices)
        with (
            processes(arguments.coordinator, arguments.num_processes, arguments.process_id),
            kept_programs(arguments.compilation_cache),
        ):
            if arguments.all is None:
                _run_experiment(arguments)
            else:
                _run_all(arguments)
    finally:  # a caller from Python keeps its own setting
        jax.config.update("jax_enable_x64", before)


def _run_experiment(arguments):
    import jax.numpy as jnp
    import numpy as np

    from jaxcascade import _run_folder as folder
    from jaxcascade._tables import report
    from jaxcascade.config import load_config, run_config
    from jaxcascade.devices import gather, share

    flags = {"num_seeds": arguments.seeds, "num_steps": arguments.steps, "seed": arguments.seed}
    overrides = dict(arguments.set) | {key: value for key, value in flags.items() if value is not None}
    config = load_config(arguments.config, overrides=overrides, quick=arguments.quick)
    first, out = share()[0] == 0, arguments.out
    finished = []

    def prepare():
        if first:
            folder.prepare_folder(out, arguments.overwrite, arguments.resume)
        if first and arguments.resume:
            finished.append(folder.finished_run(out, config, str(jnp.result_type(float))))
        return {"finished": np.array(any(finished))}

    # Process 0 looks after the folder, which the others may share or not; all end together.
    if bool(gather(prepare)[0]["finished"]):
        for study, manifest in finished:
            _say_finished(arguments, config, study, manifest)
        return config
    clock = time.perf_counter()
    try:
        with _progress(first and sys.stderr.isatty() and not arguments.quiet) as progress:
            study = run_config(
                config,
                progress,
                seed_chunk=arguments.seed_chunk,
                memory=arguments.memory,
                devices=arguments.devices,
                checkpoint=folder.checkpoint_folder(out),
                save_every=arguments.save_every,
            )
    except KeyboardInterrupt:
        words = [word for word in arguments.argv if word not in ("--overwrite", "--resume")]
        raise KeyboardInterrupt(f"(go on with: jaxcascade {shlex.join(words)} --resume)") from None
    if first:
        manifest = folder.describe_run(config, study, time.perf_counter() - clock)
        folder.write_results(out, study, manifest)
        if not arguments.quiet:
            print(report(config, study), flush=True)
        _draw_figures(arguments, config, study, manifest)
    return config


def _run_all(arguments):
    import jax

    from jaxcascade import _gallery as gallery
    from jaxcascade.devices import share

    def run_one(path, name):
        if not arguments.quiet:
            print(f"{path} ...", file=sys.stderr, flush=True)
        own = {"config": path, "out": os.path.join(arguments.out, name), "quiet": True}
        config = _run_experiment(argparse.Namespace(**vars(arguments) | own))
        jax.clear_caches()  # of programs that no other experiment needs
        return config

    paths = gallery.experiments(arguments.all)
    entries = gallery.run_all(paths, run_one)
    if share()[0] == 0:
        print(gallery.write_index(arguments.out, entries))
    failed = [f"{entry.name} ({entry.error})" for entry in entries if entry.error]
    if failed:
        raise ValueError(f"{len(failed)} of {len(entries)} experiments not run: {'; '.join(failed)}")


def _say_finished(arguments, config, study, manifest):
    """What there is left to do for a run that is finished: figures, if it was killed before they were drawn."""
    if not manifest["figures"]:
        _draw_figures(arguments, config, study, manifest)
    if not arguments.quiet:
        print(f"{arguments.out}: the run is finished (again: --overwrite)")


def _draw_figures(arguments, config, study, manifest):
    from jaxcascade import _run_folder as folder

    try:
        paths = folder.draw_figures(arguments.out, study, config.figures, manifest)
    except Exception as error:  # whatever it is, the numbers are safe, and that is what counts here
        raise ValueError(f"figures: {error!r}; all other results are in {arguments.out}") from error
    if not arguments.quiet:
        print(f"\nresults and {len(paths)} figure(s) in {arguments.out}")


def _list(arguments):
    from jaxcascade._listing import listing

    print(listing())


def _plot(arguments):
    from jaxcascade import _run_folder as folder
    from jaxcascade.core import choose

    study, manifest = folder.read_results(arguments.directory)
    figures = manifest["config"].get("figures", [])
    if arguments.metric is not None:
        choose("--metric", arguments.metric, dict.fromkeys(study.metrics))
        figures = [{"kind": "sweep" if study.axes else "curves", "metric": arguments.metric}]
    if arguments.out is None:
        for path in folder.draw_figures(arguments.directory, study, figures, manifest):
            print(path)
        return
    if len(figures) != 1:
        raise ValueError(f"--out: expected a file for one figure (--metric M), got {len(figures)} figures")
    figure = figures[0] | {"file": os.path.basename(arguments.out)}
    with tempfile.TemporaryDirectory() as stage:
        for path in folder.draw(study, [figure], stage, manifest["config"].get("title")):
            shutil.move(path, arguments.out)
    print(arguments.out)


def _compare(arguments):
    from jaxcascade import _run_folder as folder
    from jaxcascade import _tables as tables

    runs = {directory: folder.read_results(directory) for directory in arguments.directories}
    found = {study.system: directory for directory, (study, _) in runs.items()}
    if len(found) > 1:
        systems = ", ".join(f"{system} in {directory}" for system, directory in found.items())
        raise ValueError(f"compare: expected runs of one system, got {systems}")
    for directory, (study, manifest) in runs.items():
        print(f"{directory}: {manifest['config_file']}, round {study.steps[-1]}, {study.num_seeds} seeds")
    print("\n" + tables.comparison_table({directory: study for directory, (study, _) in runs.items()}))


def _inspect(arguments):
    from jaxcascade._inspect import describe

    print(describe(arguments.file))


def _setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` as a pair; a value that is a bare word or path stands for itself."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        if re.fullmatch(r"[\w./~@+-][\w./~@+ :\\-]*", value):
            return key.strip(), value
        raise argparse.ArgumentTypeError(f"expected a TOML value for {key}, got {value!r} ({error})") from None


@contextmanager
def _progress(shown: bool) -> Iterator[Progress | None]:
    """How a run reports its progress on stderr, or None where nobody looks."""
    if not shown:
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:

        def percentage(name: str, done: int, total: int) -> None:
            print(f"\r{done / total:4.0%} {name:<40.40}", end="", file=sys.stderr, flush=True)

        try:
            yield percentage
        finally:
            print(file=sys.stderr)
        return
    with tqdm(file=sys.stderr, unit=" rounds", unit_scale=True, leave=False) as bar:

        def advance(name: str, done: int, total: int) -> None:
            bar.total = total
            bar.set_description(name, refresh=False)
            bar.update(done - bar.n)

        yield advance


def _show_warning(message, category, filename, lineno, file=None, line=None):
    print(f"jaxcascade: warning: {message}", file=sys.stderr)
