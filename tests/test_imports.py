"""The arrows of the design: who may import whom, kept by reading every import of the package."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import passel

SOURCE = Path(passel.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

#: Below everything: nouns and tools without a room of their own.
GROUND = {"types", "arena", "config", "clock", "streams", "reading"}

#: Who may import whom, beside itself. A name is a room (a folder) or a file at the top of the package.
ARROWS: dict[str, set[str]] = {
    "types": set(),
    "arena": {"types"},
    "reading": set(),
    "config": {"types", "reading"},
    "clock": set(),
    "streams": {"arena"},
    "health": set(),
    "interrupts": set(),
    "maths": set(),
    "normalizer": {"maths", "arena", "types"},
    "nets": {"maths"},
    "algos": {"maths", "nets", "types", "arena", "config"},
    "envs": {"types", "arena", "reading"},
    "data": {"types", "arena", "streams"},
    "sync": {"nets", "arena", "types", "reading"},
    "actor": {"envs", "algos", "normalizer", "clock", "types"},
    "learner": {"algos", "data", "sync", "clock", "types"},
    "run": {"types", "arena", "reading"},
    "view": {"types", "run", "reading"},
    "testing": {"types"},
    "place": {"actor", "learner", "normalizer", "algos", "envs", "data", "sync", "nets", "maths", "run", *GROUND},
    "recipes": {"algos", "envs", "place", *GROUND},
    "policy": {"algos", "normalizer", "arena", "types"},
    "evaluation": {"envs", "policy", "run", "types"},
    "stopwatch": set(),
    "journal": {"run", "view", "types"},
    "saving": {"journal", "normalizer", "place", "run", *GROUND},
    "reports": {"place", "stopwatch", *GROUND},
    "examiner": {"evaluation", "journal", "place", "policy", "run", *GROUND},
    "selection": {
        "envs",
        "evaluation",
        "examiner",
        "journal",
        "normalizer",
        "place",
        "policy",
        "run",
        "trained",
        *GROUND,
    },
    "supervisor": {
        "place",
        "run",
        "view",
        "examiner",
        "health",
        "interrupts",
        "journal",
        "normalizer",
        "reports",
        "saving",
        "selection",
        "stopwatch",
        *GROUND,
    },
    "api": {
        "algos",
        "envs",
        "nets",
        "normalizer",
        "place",
        "recipes",
        "run",
        "view",
        "policy",
        "evaluation",
        "interrupts",
        "supervisor",
        "trained",
        "trust",
        *GROUND,
    },
    "trust": {"envs", "run", *GROUND},
    "trained": {
        "trust",
        "algos",
        "envs",
        "evaluation",
        "maths",
        "normalizer",
        "place",
        "policy",
        "recipes",
        "run",
        "view",
        *GROUND,
    },
    "cli": {
        "algos",
        "api",
        "config",
        "envs",
        "interrupts",
        "place",
        "reading",
        "run",
        "study",
        "trained",
        "trust",
        "types",
        "view",
        "__init__",
    },
    "study": {"api", "envs", "evaluation", "run", "streams", "trained", "trust", "types", "view"},
    "__init__": {"api", "policy", "run", "trained", "types"},
    "__main__": {"cli"},
}

#: One file may know all axes, to print what goes with what.
EXCEPTIONS = {"view/catalogue.py": {"algos", "envs", "place", "recipes", "sync"}}

#: From a room, only these of another's modules.
DOORS = {
    ("sync", "nets"): {"passel.nets.flat"},
    ("actor", "envs"): {"passel.envs.base"},
    ("actor", "algos"): {"passel.algos.base"},
    ("learner", "algos"): {"passel.algos.base"},
    ("policy", "algos"): {"passel.algos.base"},
    ("learner", "sync"): {"passel.sync.base"},
    ("view", "run"): {"passel.run.card", "passel.run.files", "passel.run.lines"},
}

OPTIONAL = {
    "ale_py": "envs/atari_games.py",
    "envpool": "envs/envpool_backend.py",
    "stable_retro": "envs/retro_game.py",
    "matplotlib": "view/plot.py",
    "av": "view/video.py",
    "tensorboard": "view/tensorboard.py",
    "zmq": "envs/zeromq.py",
    "msgpack": "envs/zeromq.py",
}

#: A program of its own for other interpreters: nothing of passel imports it, and it imports nothing of passel.
PROGRAM = "envs/serve_env.py"


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path, *, when_run: bool = False) -> list[str]:
    """Every module that a file imports, wherever in the file; with `when_run`, only what importing the file imports."""
    tree = ast.parse(path.read_text())
    nodes = _at_import(tree) if when_run else list(ast.walk(tree))
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: imports are absolute"
            found += [_module(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and _is_import_module(node):
            (argument, *_) = node.args
            found += [argument.value] if isinstance(argument, ast.Constant) else []
    return found


def _is_import_module(node: ast.Call) -> bool:
    function = node.func
    return getattr(function, "attr", getattr(function, "id", "")) in ("import_module", "__import__") and bool(node.args)


def _at_import(tree: ast.AST) -> list[ast.AST]:
    """Nodes outside of functions and of `if TYPE_CHECKING`."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        found += [node, *_at_import(node)]
    return found


def _module(module: str, name: str) -> str:
    """`from passel import api` imports passel.api; `from passel.api import train` imports passel.api."""
    parts = Path(SOURCE.parent, *module.split("."), name)
    return f"{module}.{name}" if parts.with_suffix(".py").exists() or parts.is_dir() else module


def own(path: Path) -> list[str]:
    return [module for module in imported(path) if module.split(".")[0] == "passel"]


def target(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_arrows(path: Path) -> None:
    room = room_of(path)
    assert room in ARROWS, f"{room} has no arrows yet: draw them here and in the docs"
    allowed = ARROWS[room] | {room} | EXCEPTIONS.get(name_of(path), set())
    wrong = sorted({module for module in own(path) if target(module) not in allowed})
    assert wrong == []
    for module in own(path):
        door = DOORS.get((room_of(path), target(module)))
        assert door is None or module in door, f"{room} may enter {target(module)} only by {sorted(door or ())}"


def test_the_arrows_have_no_circle() -> None:
    """A room that may import another, which may import it, is one room with two names."""
    seen: dict[str, int] = {}

    def visit(room: str, above: tuple[str, ...]) -> None:
        assert room not in above, " -> ".join((*above, room))
        if seen.setdefault(room, 0) == 0:
            for below in ARROWS[room]:
                visit(below, (*above, room))
            seen[room] = 1

    for room in ARROWS:
        if room not in ("__init__", "__main__", "cli"):
            visit(room, ())


def test_algorithms_and_schemes_never_meet() -> None:
    for room, other in (("algos", "sync"), ("sync", "algos")):
        for path in (SOURCE / room).rglob("*.py"):
            assert all(target(module) != other for module in own(path)), name_of(path)


@pytest.mark.parametrize(
    ("room", "may"), [("maths", {"torch", "numpy"}), ("nets", {"torch", "numpy"}), ("sync", {"torch"})]
)
def test_the_inner_rooms_know_little_of_the_world(room: str, may: set[str]) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        outside = {module.split(".")[0] for module in imported(path)} - set(sys.stdlib_module_names)
        assert outside <= may | {"passel"}, name_of(path)


def test_only_envs_and_those_who_take_one_from_the_user_know_gymnasium() -> None:
    knowing = {room_of(path) for path in FILES if any(module.split(".")[0] == "gymnasium" for module in imported(path))}
    assert knowing <= {"envs", "testing", "place", "api", "trained", "evaluation", "view"}


@pytest.mark.parametrize(("package", "home"), OPTIONAL.items())
def test_an_optional_dependency_is_imported_in_exactly_one_file_and_inside_a_function(package: str, home: str) -> None:
    def asks_for(module: str) -> bool:
        return package in module.split(".") and module.partition(".")[0] in (package, "torch")

    homes = [name_of(path) for path in FILES if any(asks_for(module) for module in imported(path))]
    assert [name for name in homes if name != PROGRAM] == [home]
    assert not any(asks_for(module) for module in imported(SOURCE / home, when_run=True))


def test_torch_distributed_is_imported_where_an_allreduce_needs_it_only() -> None:
    homes = [
        name_of(path) for path in FILES if any(module.startswith("torch.distributed") for module in imported(path))
    ]
    assert homes == ["sync/allreduce.py"]


def test_what_must_start_fast_imports_nothing_heavy() -> None:
    """The command line answers --help, and the forkserver starts, before anybody has imported torch."""
    for name in ("__init__.py", "__main__.py", "cli.py", "place/__init__.py", "place/forkserver.py"):
        modules = {module.split(".")[0] for module in imported(SOURCE / name, when_run=True)}
        assert modules <= {*sys.stdlib_module_names, "passel"}, name


def test_tests_are_not_needed_to_train() -> None:
    """passel.testing ships with the package and is imported by nobody in it."""
    others = [path for path in FILES if room_of(path) != "testing"]
    assert [name_of(path) for path in others if any(target(module) == "testing" for module in own(path))] == []


def test_the_server_is_one_file_on_its_own() -> None:
    """numpy, pyzmq, msgpack, gym or gymnasium, and a Python from 3.8 on: nothing else, but a console's own wrapper."""
    modules = {module.split(".")[0] for module in imported(SOURCE / PROGRAM)}
    assert modules - set(sys.stdlib_module_names) == {"numpy", "zmq", "msgpack", "nes_py"}
    ast.parse((SOURCE / PROGRAM).read_text(), feature_version=(3, 8))
    assert all("passel.envs.serve_env" not in own(path) for path in FILES)
