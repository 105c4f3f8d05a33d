"""The command line. Every flag of `passel train` is a field of a config dataclass, with its sentence of help.

Nothing heavy is imported before the arguments ask for it, and the forkserver starts before this process imports torch:
both import it at the same time, on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import errno
import functools
import importlib
import io
import math
import signal
import sys
import time
import types
import typing
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from passel.interrupts import EXIT_INTERRUPTED, Interrupts
from passel.place.lifeline import command
from passel.reading import read_config

if TYPE_CHECKING:
    from passel.api import Run

#: Characters of one line of an error.
LONGEST_LINE = 2000

EXIT_FAILED, EXIT_USER = 1, 2

#: These handle Ctrl-C themselves.
TRAINING = ("train", "resume")
#: What a command imports first, one after the other, so that a Ctrl-C is heard between them.
IMPORTS = {
    **dict.fromkeys(TRAINING, ("numpy", "torch", "gymnasium", "passel.api")),
    **dict.fromkeys(("eval", "video", "levels"), ("numpy", "torch", "gymnasium", "passel.trained")),
    "transfer": ("numpy", "torch", "gymnasium", "passel.study.transfer"),
    "plot": ("passel.view.plot",),
}

#: With one of these among the arguments there will be no processes to start.
NO_WORKERS = {"-h", "--help", "inline", "--place=inline"}

#: These make environments, and with them processes that must not outlive the command.
PLAYING = {"train", "resume", "eval", "video", "levels", "transfer"}

EXAMPLES = """examples:
  passel train                                        DQN, Hogwild!, every core, LunarLander-v3
  passel train --env CartPole-v1 --sync server --shards 2 --workers 4
  passel train --sync allreduce --place inline        one process, deterministic
  passel train --sync gossip --topology ring --workers 4
  passel train --config my.toml --lr 5e-4             a file, and a flag over it
  passel eval runs/x --episodes 100
  passel resume runs/x --steps 1000000
  passel train --algo ppo --env levels:procgen:jumper one policy for many levels
"""


def _leaving_no_process(main: Callable[..., int]) -> Callable[..., int]:
    """The processes that a command has started, and those of its environments, have ended when it returns."""

    @functools.wraps(main)
    def whole(argv: Sequence[str] | None = None) -> int:
        arguments = list(sys.argv[1:] if argv is None else argv)
        with command() if PLAYING & set(arguments[:1]) else nullcontext():
            return main(arguments)

    return whole


@_leaving_no_process
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. 0: done, 1: a worker died, 2: a mistake of the user's, 130: Ctrl-C.

    While modules are imported a Ctrl-C is noted, and heard between them: see Interrupts.
    """
    began = time.perf_counter()
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        if arguments[:1] == ["serve-env"]:
            _serve_env(arguments[1:])
        with Interrupts(signal.SIGINT, held=True) as interrupts:
            if _needs_workers(arguments):
                from passel.place.forkserver import warm_up

                warm_up(_env_said(arguments))
                if sys.stdout.isatty() and "--quiet" not in arguments:
                    print("Starting ...", flush=True)
            interrupts.insist()
            for module in IMPORTS.get(arguments[0] if arguments else "", ()):
                importlib.import_module(module)
                interrupts.insist()
            return _dispatch(arguments, began, interrupts)
    except KeyboardInterrupt:
        with suppress(OSError):
            print("passel: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED


def _needs_workers(arguments: list[str]) -> bool:
    """Whether this command will start processes: known before anything is imported, so that they can start at once."""
    if arguments[:1] not in (["train"], ["resume"]) or NO_WORKERS & set(arguments):
        return False
    try:
        return all(file.get("place") != "inline" for file in _files_said(arguments))
    except (OSError, ValueError):
        return False  # there is an error to come that needs no workers


def _env_said(arguments: list[str]) -> str:
    """The environment that the arguments, or the files that they name, ask for, if they do: some have more for the
    workers to share.
    """
    found = [file["env"] for file in _files_said(arguments) if "env" in file]
    found += [after for flag, after in pairwise(arguments) if flag == "--env"]
    found += [word.removeprefix("--env=") for word in arguments if word.startswith("--env=")]
    return str(found[-1]) if found else ""


def _files_said(arguments: list[str]) -> list[dict[str, Any]]:
    """The configurations that the arguments name: of the run to resume, and after --config."""
    files = [Path(a) / "config.toml" for a in arguments[1:2]] if arguments[0] == "resume" else []
    files += [Path(after) for flag, after in pairwise(arguments) if flag == "--config"]
    return [read_config(file, follow=True) for file in files]


def _dispatch(arguments: list[str], began: float, interrupts: Interrupts) -> int:
    from passel.types import PasselError

    try:
        said = _parser(arguments).parse_args(arguments)
        if said.command in TRAINING:
            interrupts.insist()  # and again by the run, before it leaves anything on disk
        else:
            interrupts.release()
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            code: int = COMMANDS[said.command](said, began)
        return code
    except PasselError as error:
        _complain(str(error))
        return EXIT_USER
    except Exception as error:
        from passel.place.base import WorkerDiedError
        from passel.place.limits import explanation

        if isinstance(error, OSError) and (words := explanation(error) or _about_a_path(error, arguments)):
            _complain(words)
            return EXIT_USER
        if not isinstance(error, WorkerDiedError):
            raise
        _complain(str(error))
        return EXIT_FAILED


def _about_a_path(error: OSError, arguments: list[str]) -> str:
    """What is wrong with a path that the user named; empty for every other error."""
    path = str(error.filename)
    named = any(path.startswith(word) for word in arguments[1:] if word)
    if not named or error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
        return ""
    return f"{path[:100]} cannot be used ({error.strerror}). Give another path, or make it readable."


def _show_warning(usual: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """passel's own warnings are sentences for the user; all others are shown as ever."""
    if category.__module__.startswith("passel."):
        _complain(str(message))
    else:
        usual(message, category, *where)


def _complain(text: str) -> None:
    """An error, with what follows the first line moved to stand under it. It may quote a file or a server: a terminal
    must not take any of that for commands.
    """
    from passel.types import printable

    print("passel: " + "\n        ".join(printable(line, LONGEST_LINE) for line in text.split("\n")), file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """argparse, with errors that name the nearest flag."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0]
            nearest = difflib.get_close_matches(given, self._option_string_actions, n=1, cutoff=0.5)
            cure = f"Did you mean {nearest[0]}?" if nearest else f"`{self.prog} --help` lists what there is."
            message = f"there is no {given}. {cure}"
        _complain(message)
        sys.exit(EXIT_USER)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Errors about flags come from the command's own parser, which knows them."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            getattr(found, "parser", self).error("unrecognized arguments: " + " ".join(unknown))
        return found


def _parser(arguments: Sequence[str]) -> _Parser:
    from passel import __version__

    parser = _Parser(
        prog="passel",
        description="Parallel deep reinforcement learning, with the synchronisation scheme as a free axis.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"passel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", parser_class=_Parser)
    train = _command(commands, "train", "Train an agent; stops when the environment is solved.")
    if arguments[:1] == ["train"]:
        _add_training_flags(train, arguments)
    resume = _command(commands, "resume", "Continue a run exactly where its last good checkpoint is.", run=True)
    resume.add_argument("--steps", type=_whole, help="New total number of steps; default: as it was.")
    resume.add_argument(
        "--until-solved", action=argparse.BooleanOptionalAction, help="Stop when solved; default: as it was."
    )
    resume.add_argument("--quiet", action="store_true", help="Print nothing but errors.")
    resume.add_argument("--env", help="Environment, if the run's own is a Python function: MODULE:FUNCTION.")
    _add_run_commands(commands)
    _add_tools(commands)
    return parser


def _command(commands: Any, name: str, help: str, *, run: bool = False) -> argparse.ArgumentParser:
    """A command; of one that uses a run, with what all of those have."""
    sub: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    sub.set_defaults(parser=sub)
    if run:
        sub.add_argument("run", type=Path, help="Folder of the run.")
        sub.add_argument(
            "--trust", action="store_true", help="Import the modules and use the addresses that the run names."
        )
    return sub


def _add_run_commands(commands: Any) -> None:
    """What can be done with a run beside training it."""
    evaluation = _command(commands, "eval", "Play fresh greedy episodes with a run's policy.", run=True)
    evaluation.add_argument("--episodes", type=_whole, default=100, help="How many (default 100).")
    evaluation.add_argument("--seed", type=_whole, help="Seed of the episodes; default: the run's.")
    evaluation.add_argument("--sample", action="store_true", help="Draw actions as in training, not the best ones.")
    evaluation.add_argument("--env", help="Another environment of the same shape; default: the run's own.")
    video = _command(commands, "video", "Film the best, the median and the worst of some greedy episodes.", run=True)
    _add_last(evaluation)
    video.add_argument("--episodes", type=_whole, default=10, help="How many to choose from (default 10).")
    video.add_argument("--seed", type=_whole, default=0, help="Seed of the first episode (default 0).")
    video.add_argument("--env", help="Another environment of the same shape; default: the run's own.")
    _add_last(video)
    levels = _command(
        commands, "levels", "How well a run's policy plays each level of its set, trained on or held out.", run=True
    )
    levels.add_argument(
        "--episodes", type=_whole, help="Play so many of each level again; default: show the last table."
    )
    levels.add_argument("--sample", action="store_true", help="Draw actions as in training, instead of the best ones.")
    levels.add_argument("--seed", type=_whole, help="Seed of the episodes; default: the run's.")
    _add_last(levels)
    transfer = _command(
        commands,
        "transfer",
        "Does joint training help? Fine-tune a run on one level, and learn it from scratch.",
        run=True,
    )
    transfer.add_argument("--level", help="Level to learn; default: the first that is held out.")
    transfer.add_argument("--steps", type=_whole, default=100_000, help="Steps of either way (default 100000).")
    transfer.add_argument("--seeds", type=_whole, default=1, help="How often to repeat both (default 1).")
    transfer.add_argument("--workers", type=_whole, default=0, help="Workers; default: one for each usable core.")
    transfer.add_argument("--envs", type=_whole, default=0, help="Environments of each worker; default: as preset.")
    transfer.add_argument(
        "--out", type=Path, help="Folder for the runs and the result; default: transfer-LEVEL in the run."
    )
    plot = _command(commands, "plot", "Draw learning curve, speed and share of time of one or more runs.")
    plot.add_argument("runs", nargs="+", type=Path, help="Folders of the runs, or folders that hold runs.")
    plot.add_argument("--x", choices=["steps", "seconds", "episodes"], default="steps", help="The horizontal axis.")
    plot.add_argument("--out", type=Path, help="Image to write; default: plot.png in the (first) run.")


def _add_last(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--last",
        action="store_true",
        help="Use the last policy, not the best one by the evaluations during training.",
    )


def _add_tools(commands: Any) -> None:
    keys = _command(commands, "keys", "Make the two key files for a server of environments on another machine.")
    keys.add_argument("folder", type=Path, help="Folder for server.json and client.json.")
    packages = _command(
        commands, "env", "Install, list or remove environments that live in an interpreter of their own."
    )
    packages.add_argument("action", choices=["install", "list", "remove"], help="What to do.")
    packages.add_argument("name", nargs="?", help="Which one: tetris or mario.")
    packages.add_argument("--yes", action="store_true", help="Agree to the note about the licence without a question.")
    packages.add_argument("--python", default=sys.executable, help="Interpreter to build it from (default: this one).")
    _command(commands, "serve-env", "Serve environments over a socket, from an interpreter of their own.")
    listing = _command(commands, "list", "Algorithms, schemes, placements, presets, and what goes with what; or runs.")
    listing.add_argument("folder", nargs="?", type=Path, help="List the runs below this folder instead.")
    _command(commands, "doctor", "This machine: cores, memory, versions, and which optional parts are there.")


def _add_training_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    from passel.algos import ALGORITHMS, CANDIDATES
    from passel.config import AUTO, RunConfig, read_toml
    from passel.run.folder import RunFolder

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--algo")
    first.add_argument("--config", type=Path)
    first.add_argument("--from", dest="start_from", type=Path)
    known, _ = first.parse_known_args(arguments[1:])
    algo = known.algo or (read_toml(known.config).get("algo") if known.config and known.config.exists() else None)
    if algo in (None, "", AUTO) and known.start_from and known.start_from.exists():
        algo = RunFolder.open(known.start_from, lock=False).read_config()["algo"]
    parser.add_argument("--config", type=Path, help="TOML file with any of these settings; flags override it.")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="Import the modules and use the addresses that a run's --config names.",
    )
    _add_fields(parser.add_argument_group("the run"), RunConfig)
    shown: set[str] = set()
    for name in CANDIDATES if algo == AUTO else (algo or RunConfig.algo,):
        if name in ALGORITHMS:
            group = parser.add_argument_group(f"{name}: {ALGORITHMS[name].summary}")
            _add_fields(group, ALGORITHMS[name].Config, shown)
            shown |= {field.name for field in dataclasses.fields(ALGORITHMS[name].Config)}


def _add_fields(group: Any, config: type[Any], besides: Container[str] = ()) -> None:
    """A flag for each field, besides those that there are already. What is not given is not in the result, so that
    presets and files can show through.
    """
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if field.name in besides:
            continue
        hint = hints[field.name]
        optional = isinstance(hint, types.UnionType)
        if optional:
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        default = field.default
        shown = "" if default is None or default == "" else f" (default {_shown(default)})"
        options: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%") + shown}
        if hint is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(hint) is Literal:
            options["choices"] = typing.get_args(hint)
        elif typing.get_origin(hint) is tuple:
            options |= {"type": _whole, "nargs": "+", "metavar": "N"}
        else:
            read = _READERS[hint]
            options |= {"type": _or_none(read) if optional else read, "metavar": _METAVARS[hint]}
        flag = field.metadata.get("flag", field.name).replace("_", "-")
        group.add_argument(f"--{flag}", dest=field.name, default=argparse.SUPPRESS, **options)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        return text if text == "none" else read(text)

    return number


def _whole(text: str) -> int:
    """A whole number; 1e6 and 1_000_000 are whole numbers too."""
    try:
        value = int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number") from None


_READERS: dict[Any, Callable[[str], Any]] = {int: _whole, float: _number, str: str}
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


def _train(said: argparse.Namespace, began: float) -> int:
    from passel import api
    from passel.config import overriding

    flags = {key: value for key, value in vars(said).items() if key not in ("command", "config", "parser", "trust")}
    file = _read_config(said.config, flags, trust=said.trust) if said.config else {}
    return _closing(api.train(began=began, **overriding(file, flags)))


def _read_config(path: Path, flags: Mapping[str, Any], *, trust: bool) -> dict[str, Any]:
    """The settings of a file. A run's own config.toml runs it again, in another folder."""
    from passel import trained
    from passel.config import read_toml
    from passel.run.folder import CARD, CONFIG, RunFolder

    content = read_toml(path)
    if path.name == CONFIG and (path.parent / CARD).exists():
        content.pop("out", None)
        if content.get("until_solved") is True:  # the default, which is written down also where nothing can be solved
            del content["until_solved"]
        if "env" not in flags and "env" in content:
            trained.check_env(RunFolder.open(path.parent, lock=False), str(content["env"]), call="train", trust=trust)
    return content


def _resume(said: argparse.Namespace, began: float) -> int:
    from passel import api

    asked = {"steps": said.steps, "until_solved": said.until_solved, "quiet": said.quiet}
    return _closing(api.resume(said.run, said.env, **asked, trust=said.trust), quiet=said.quiet)


def _closing(run: Run, quiet: bool | None = None) -> int:
    """The result on the screen, and the exit code that says how it ended. Unless told, as quiet as the run's config."""
    from rich.console import Console

    from passel.run.folder import RunFolder
    from passel.view.display import write_within
    from passel.view.levels import print_levels
    from passel.view.result import render_result

    folder = RunFolder.open(run.path, lock=False)
    config = folder.read_config()
    if not (config.get("quiet") if quiet is None else quiet):
        screen, closing = Console(), io.StringIO()
        console = Console(file=closing, force_terminal=screen.is_terminal, width=screen.width, height=screen.height)
        result = {**run.summary.to_json(), "shares": run.shares, "roles": run.roles, "solved_at": run.threshold}
        result["total_steps"] = config.get("steps")
        render_result(result, run.path, console)
        levels = folder.read_levels()
        if levels:
            print_levels(levels, console)
        write_within(closing.getvalue(), sys.stdout)  # a terminal that is gone, or does not drain, changes no exit code
    return EXIT_INTERRUPTED if run.summary.status == "stopped" else 0


def _eval(said: argparse.Namespace, began: float) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from passel import trained
    from passel.envs import describe
    from passel.envs.atari_protocol import is_atari

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("playing", total=said.episodes)

        def show(ended: int) -> bool:
            bar.update(task, completed=ended)
            return True

        asked = {
            "episodes": said.episodes,
            "seed": said.seed,
            "sample": said.sample,
            "env": said.env,
            "last": said.last,
            "trust": said.trust,
        }
        result = trained.evaluate(said.run, **asked, progress=show)
    spread = f"± {result.std:.1f} (from {result.min:.1f} to {result.max:.1f})"
    how = "" if said.sample else "greedy "
    spec = trained.spec_of(said.run) if said.env is None else describe(said.env) if is_atari(said.env) else None
    human = None if spec is None else spec.human_normalised(result.mean)
    share = "" if human is None else f", {human:.1%} of human"
    cut = f", {result.cut} of them cut before their end" if result.cut else ""
    print(f"{result.episodes} {how}episodes: {result.mean:.1f} {spread}{share}{cut}; checkpoint: step {result.step}")
    return 0


def _video(said: argparse.Namespace, began: float) -> int:
    from passel import trained

    asked = {"episodes": said.episodes, "seed": said.seed, "env": said.env, "last": said.last, "trust": said.trust}
    for film in trained.film(said.run, **asked):
        played = f"score {film.score:.1f}, {film.length} steps; checkpoint: step {film.step}"
        print(f"{film.path}  {film.rank}: {played}")
    return 0


def _plot(said: argparse.Namespace, began: float) -> int:
    from passel.run.listing import runs_in
    from passel.view.plot import plot_run

    found = [runs_in(folder) or [folder] for folder in said.runs]
    runs = [run for below in found for run in below]
    print(plot_run(runs, said.out or said.runs[0] / "plot.png", said.x))
    return 0


def _keys(said: argparse.Namespace, began: float) -> int:
    from passel.envs.remote_keys import make_keys

    server, client = make_keys(said.folder)
    print(f"{server}  for the server: passel serve-env ID --bind tcp://0.0.0.0:5555 --key {server}")
    print(f"{client}  for training:   passel train --env tcp://HOST:5555 --env-key {client}")
    return 0


def _env(said: argparse.Namespace, began: float) -> int:
    from passel.envs import packaged
    from passel.types import PasselError

    if said.action == "list":
        for name, package in packaged.PACKAGES.items():
            there = f"{packaged.home() / name}, {packaged.size_mb(name):.0f} MB" if packaged.installed(name) else "no"
            print(f"{name:<8} {package.summary}; installed: {there}")
        return 0
    if said.name is None:
        raise PasselError(f"passel env {said.action} needs a name: {' or '.join(packaged.PACKAGES)}.")
    if said.action == "remove":
        print(f"Removed {packaged.remove(said.name)}.")
        return 0

    def agree(note: str) -> bool:
        print(note)
        return said.yes or (sys.stdin.isatty() and input("Install it? [y/N] ").strip().lower() in ("y", "yes"))

    packaged.install(said.name, said.python, agree, print)
    print(f"Installed. Use it: passel train --algo ppo --env {said.name}")
    return 0


def _serve_env(arguments: Sequence[str]) -> NoReturn:
    """Become the server, in the interpreter that `--python` names. It has flags of its own."""
    import os

    words = list(arguments)
    python = sys.executable
    if "--python" in words[:-1]:
        where = words.index("--python")
        python = words[where + 1]
        del words[where : where + 2]
    server = Path(__file__).parent / "envs" / "serve_env.py"
    try:
        os.execvp(python, [python, str(server), *words])
    except OSError as error:
        _complain(f"{python} cannot be run ({error.strerror}). Give --python the path of an interpreter.")
        sys.exit(EXIT_USER)


def _levels(said: argparse.Namespace, began: float) -> int:
    from rich.console import Console

    from passel import trained
    from passel.run.folder import RunFolder
    from passel.view.levels import print_levels
    from passel.view.plot import plot_levels

    found = RunFolder.open(said.run, lock=False).read_levels()
    if found is None or said.episodes is not None or said.seed is not None or said.sample or said.last:
        episodes = 1 if said.episodes is None else said.episodes
        asked = {"episodes": episodes, "seed": said.seed, "sample": said.sample}
        asked |= {"last": said.last, "trust": said.trust}
        found = trained.evaluate_levels(said.run, **asked)
    print_levels(found, Console())
    print(plot_levels(found, said.run / "levels.png"))
    return 0


def _transfer(said: argparse.Namespace, began: float) -> int:
    from rich.console import Console

    from passel.study.transfer import transfer
    from passel.view.levels import print_transfer
    from passel.view.plot import plot_run

    settings = {"envs": said.envs} if said.envs else {}
    shape: dict[str, Any] = {"steps": said.steps, "seeds": said.seeds, "workers": said.workers, "settings": settings}
    result = transfer(said.run, said.level, out=said.out, tell=print, trust=said.trust, **shape)
    print_transfer(result.content, Console())
    print(plot_run(result.runs, result.path / "transfer.png"))
    return 0


def _list(said: argparse.Namespace, began: float) -> int:
    if said.folder is not None:
        from passel.run.listing import facts_of, runs_in
        from passel.types import PasselError
        from passel.view.runs import print_runs

        runs = runs_in(said.folder)
        if not runs:
            raise PasselError(f"there are no runs in {said.folder}. Start one with `passel train`.")
        print_runs(map(facts_of, runs))
        return 0
    from passel.view.catalogue import print_catalogue

    print_catalogue()
    return 0


def _doctor(said: argparse.Namespace, began: float) -> int:
    from passel.view.doctor import print_diagnosis

    print_diagnosis()
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace, float], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "video": _video,
    "levels": _levels,
    "transfer": _transfer,
    "plot": _plot,
    "env": _env,
    "keys": _keys,
    "list": _list,
    "doctor": _doctor,
}
