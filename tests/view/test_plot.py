from __future__ import annotations

import builtins
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from passel.types import PasselError
from passel.view.plot import plot_run, read_run


def row(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "steps": 1000 * index,
        "seconds": 0.25 * index,
        "episodes": 10 * index,
        "updates": 100 * index,
        "return_mean_100": None if index < 2 else 500 * (1 - math.exp(-index / 20)),
        "steps_per_second": 4000.0,
        "updates_per_second": 400.0,
        "staleness": 1.2,
        "shares": {"env": 0.5, "learn": 0.4, "other": 0.1},
        "scalars": {"loss": 0.1},
        "solved_at": 475.0,
        **changes,
    }


def write_run(folder: Path, rows: list[dict[str, Any]], tail: str = "", sync: str = "hogwild") -> Path:
    folder.mkdir(parents=True)
    text = "".join(json.dumps(one) + "\n" for one in rows) + tail
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "config.toml").write_text(f'env = "CartPole-v1"\nalgo = "dqn"\nsync = "{sync}"\nworkers = 4\n')
    return folder


def pixels(path: Path) -> Any:
    from matplotlib.image import imread

    return imread(path)


@pytest.mark.parametrize("x", ["steps", "seconds", "episodes"])
def test_one_run_is_drawn_against_each_axis(x: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [row(i) for i in range(50)])
    out = plot_run([folder], tmp_path / "pictures" / "curve.png", x)
    assert out.stat().st_size > 20_000
    picture = pixels(out)
    assert picture.shape[:2] == (1200, 1200)
    assert 0.02 < np.mean(picture[..., :3].min(axis=2) < 0.9) < 0.6, "neither empty nor black"


def test_several_runs_have_a_line_and_a_bar_each(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, [row(i) for i in range(30)], sync=name) for name in ("locked", "hogwild")]
    out = plot_run(folders, tmp_path / "both.svg", "seconds")
    text = out.read_text(encoding="utf-8")
    for wanted in ("locked", "hogwild", "CartPole-v1 · dqn · 4 workers · 2 runs", "solved at 475"):
        assert f"<!-- {wanted} -->" in text, wanted


def test_runs_of_one_name_are_numbered_in_the_legend(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name / "seed0", [row(i) for i in range(5)]) for name in ("a", "b")]
    text = plot_run(folders, tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "<!-- seed0 (1) -->" in text
    assert "<!-- seed0 (2) -->" in text


def test_what_a_resumed_run_did_again_counts_once(tmp_path: Path) -> None:
    first = [row(i) for i in range(10)]
    again = [row(i, return_mean_100=1.0) for i in range(6, 12)]
    run = read_run(write_run(tmp_path / "run", first + again))
    steps, returns = run.column("steps", "return_mean_100")
    assert steps == [1000.0 * i for i in range(2, 12)]
    assert returns[-6:] == [1.0] * 6


def test_half_a_last_line_is_a_run_that_is_still_writing(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [row(1), row(2)], tail='{"steps": 3'))
    assert len(run.rows) == 2


def test_a_run_without_shares_or_returns_is_drawn_without_them(tmp_path: Path) -> None:
    rows = [row(i, shares={}, return_mean_100=None, solved_at=None) for i in range(3)]
    folders = [write_run(tmp_path / name, rows) for name in "ab"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot_run(folders[:1], tmp_path / "one.png").exists()
        assert plot_run(folders, tmp_path / "two.png").exists()


def test_mean_shares_are_over_the_reports_that_have_them(tmp_path: Path) -> None:
    rows = [row(1, shares={"env": 1.0}), row(2, shares={"learn": 1.0}), row(3, shares={})]
    assert read_run(write_run(tmp_path / "run", rows)).shares == {"env": 0.5, "learn": 0.5}


def test_a_configuration_with_tables_or_none_still_gives_a_title(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [row(1)])
    (folder / "config.toml").write_text('algo = "ppo"\n[env]\nid = "Acrobot-v1"\n')
    assert read_run(folder).title == "Acrobot-v1 · ppo"
    (folder / "config.toml").unlink()
    assert read_run(folder).title == "run"


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read"), ("", "no report yet"), ("nonsense\n{}\n", "line 1"), ("[1]\n{}\n", "not a JSON object")],
)
def test_bad_metrics_are_a_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(PasselError, match=words):
        plot_run([tmp_path], tmp_path / "out.png")


def test_the_closing_sample_of_an_earlier_version_is_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(i, phase="train") for i in range(1, 5)] + [row(5, phase="finished", steps_per_second=0.0)]
    drawn: list[Any] = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **_: drawn.append(y))
    plot_run([write_run(tmp_path / "run", rows)], tmp_path / "out.png")
    assert drawn[1] == [4000.0] * 4


@pytest.mark.parametrize("name", ["return_mean_100", "steps_per_second", "solved_at"])
def test_a_number_that_no_axis_can_show_is_missing(name: str, tmp_path: Path) -> None:
    rows = [row(i, **{name: (-1) ** i * 1.7e308}) for i in range(1, 5)]
    plot_run([write_run(tmp_path / "run", rows)], tmp_path / "out.png")


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [row(1)])
    (folder / "config.toml").write_text(f'env = "{"a" * 100_000}"\n')
    assert len(read_run(folder).title) < 300


def test_wrong_requests_are_a_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [row(i) for i in range(3)])
    with pytest.raises(PasselError, match="steps, seconds, episodes"):
        plot_run([folder], tmp_path / "out.png", "weeks")  # type: ignore[arg-type]
    with pytest.raises(PasselError, match="at least one"):
        plot_run([], tmp_path / "out.png")
    with pytest.raises(PasselError, match=r"\.png"):
        plot_run([folder], tmp_path / "out.nonsense")


def test_without_matplotlib_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", [row(1)])
    _forbid("matplotlib", monkeypatch)
    with pytest.raises(PasselError, match=r"pip install 'passel\[view\]'"):
        plot_run([folder], tmp_path / "out.png")


def _forbid(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
