"""What README, CONTRIBUTING and the examples show is run, and is what they say it is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import fedpage as fp
from fedpage.draws import RoundDraws

ROOT = Path(__file__).resolve().parents[2]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_readmes_snippet(real, tmp_path, monkeypatch):
    real("a9a")
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md")
    names: dict = {}
    exec(code.replace("rounds=2000", "rounds=200"), names)
    assert names["history"].last("round") == 200
    assert (tmp_path / "run.csv").exists()


def test_the_readme_names_every_method_and_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{kind.__name__}` | {kind.paper} |" in text for kind in fp.METHODS.values())
    assert "make demo" in text
    assert "make test" in text


def test_the_runs_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/runs.md")
    exec(code.replace("1000", "60").replace("checkpoint_every=100", "checkpoint_every=10"), {"fp": fp})
    assert {path.name for path in (tmp_path / "runs" / "long").iterdir()} >= {
        "run.toml",
        "history.jsonl",
        "checkpoints",
    }


def test_links_between_documents_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_contributing_shows_the_examples_as_they_are():
    method, problem = blocks("CONTRIBUTING.md")
    for shown, name in ((method, "own_method.py"), (problem, "own_problem.py")):
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        assert shown.strip() == text.split("\n\nif __name__")[0].strip()


def test_the_own_method_works_and_obeys(capsys):
    kind = runpy.run_path(str(ROOT / "examples" / "own_method.py"), run_name="__main__")["MomentumSGD"]
    assert "History(MomentumSGD, 500 rounds" in capsys.readouterr().out
    problem = fp.Quadratic.random(8, 5, 4, seed=3)
    history = fp.simulate(problem, kind(S=8, eta=0.1), rounds=200, seed=0)
    np.testing.assert_allclose(history.x, problem.x_star, atol=1e-8)
    assert kind().with_step(0.3).step == pytest.approx(0.3)


def test_the_own_problem_works_and_obeys(capsys):
    module = runpy.run_path(str(ROOT / "examples" / "own_problem.py"), run_name="__main__")
    assert "FedPAGE, 300 rounds" in capsys.readouterr().out
    rng = np.random.default_rng(1)
    problem = module["RobustCentre"]([rng.normal(size=(m, 3)) for m in (1, 4, 9)])
    x, h = rng.normal(size=3), 1e-6
    slopes = [(problem.loss(x + h * e) - problem.loss(x - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(problem.grad(x), slopes, atol=1e-8)
    method = fp.FedPAGE(S=2, K=3, eta_g=0.5, b2=3, b3=2)
    run = fp.simulate(problem, method, rounds=20, seed=0)
    assert run.same(fp.simulate(problem, method, rounds=20, seed=0, threads=2, chunk=1))
    oracle = problem.oracle(np.arange(3), RoundDraws(0, 0))
    assert oracle.grad(x, oracle.batch(3)).shape == (3, 3)
    assert oracle.gradients == 1 + 3 + 3


def test_quickstart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"))
    assert "History(FedPAGE, 500 rounds" in capsys.readouterr().out
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000


def test_every_public_thing_has_a_docstring_and_is_listed():
    for name in fp.__all__:
        thing = getattr(fp, name)
        assert thing is not None
        if name not in ("__version__", "METHODS"):
            assert thing.__doc__, name
    assert set(fp._WHERE) | set(fp._ROOMS) | {"__version__"} == set(fp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fp.nothing  # noqa: B018


def test_the_faults_of_the_documentation(tmp_path, run):
    (toml,) = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    (tmp_path / "faults.toml").write_text(toml, encoding="utf-8")
    small = ["--data", "census:rows=400", "--clients", "10", "--S", "3", "--rounds", "30"]
    words = [*small, "--partition", "by-label", "--faults", "faults.toml"]
    code, out, err = run("run", "fedpage", *words)
    assert code == 0, err
    assert "rejected: " in out
