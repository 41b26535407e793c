"""Check benchmarks/communication.py: its counts, targets that are not reached, resuming."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import fedpage as fp
from fedpage.core.types import Call
from fedpage.methods.fedpage import LeakFreeSteps, Reply
from fedpage.runs import build

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
D, N, S = 123, 20, 5
VECTOR = 8 * D


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))
    try:
        import communication

        yield communication
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("communication", "communication_report"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def problem():
    return fp.RobustRegression(fp.load("census", rows=200), clients=N)


class AsInPaper(fp.FedPAGE):
    """FedPAGE that sends x, x_prev and g, as in the paper."""

    messages: ClassVar = {**fp.FedPAGE.messages, LeakFreeSteps: Reply}
    compressible: ClassVar = {}

    def _call_sampled(self, state, draws):
        return Call(draws.clients(state.N, self.S), LeakFreeSteps(state.x, state.x_prev, state.g))

    def _leak_free_steps(self, message, oracle):
        reply, _ = super().client(
            fp.methods.fedpage.LocalSteps(message.x_prev, message.g), oracle, None
        )
        return reply


def test_bytes_to_each_target_equal_a_count_by_hand(bench, problem):
    # full rounds 0, 4, 8, ...: N vectors down, N up; others: 2 S down (the paper: 3 S), S up
    method = fp.FedPAGE(S=S, K=2, eta_g=0.2, p=0.25, periodic=True)
    history = fp.simulate(problem, method, rounds=100, seed=0, record_every=1)
    for target in (0.1, 0.07):
        cost = bench.report.cost([history], target)
        rounds = next(int(r["round"]) for r in history.rows if r["grad_norm"] <= target)
        full = math.ceil(rounds / 4)
        sampled = rounds - full
        assert rounds > 4
        assert cost.rounds == rounds
        assert cost.clients == full * N + sampled * S
        assert cost.up == VECTOR * (full * N + sampled * S)
        assert cost.down == VECTOR * (full * N + sampled * S * 2)
        assert cost.down_paper == VECTOR * (full * N + sampled * S * 3)
        assert cost.gradients == full * 10 + sampled * (2 * 10 + 2)


def test_bytes_in_the_paper_equal_a_run_that_sends_three_vectors(bench, problem):
    settings = {"S": S, "K": 3, "eta_g": 0.2, "eta_l": 0.05, "p": 0.2}
    ours = fp.simulate(problem, fp.FedPAGE(**settings), rounds=40, seed=1, record_every=5)
    sent = fp.simulate(problem, AsInPaper(**settings), rounds=40, seed=1, record_every=5)
    assert ours.x.tobytes() == sent.x.tobytes()
    assert bench.report.bytes_down_in_paper(ours).tolist() == sent["bytes_down"].tolist()
    assert ours.last("bytes_down") < sent.last("bytes_down")
    for method in (
        fp.SCAFFOLD(S=S),
        fp.SLocalSVRG(),
        replace(fp.FedPAGE(**settings), leak_free=True),
    ):
        other = fp.simulate(problem, method, rounds=6, seed=0, record_every=2)
        assert bench.report.bytes_down_in_paper(other).tolist() == other["bytes_down"].tolist()


def test_measured_traffic_is_that_of_a_run(bench, problem):
    names = "fedpage scaffold s-local-svrg svrp zerosarah cofig:up=natural ef21-pp:up=topk:12"
    for name in names.split():
        method = _fair(name)
        sent = bench.traffic(problem, method)
        rounds = 1_000
        run = fp.simulate(problem, method, rounds=rounds, seed=1, record_every=rounds)
        expected = sent.first + (rounds - 1) * sent.later
        assert run.last("bytes") == pytest.approx(expected, rel=0.04), name
        assert sent.rounds(expected) in (rounds, rounds + 1)  # rounding errors


def _fair(name):
    return build.build_fair_method(name, N=N, M=10, S=S, K=10, step=0.01)


@pytest.mark.parametrize(
    ("name", "up_of_a_difference", "down_of_a_difference"),
    [
        ("fedpage", VECTOR, 2 * VECTOR),
        ("fedpage:up=natural", math.ceil(12 * D / 8), 2 * VECTOR),
        ("pp-marina:up=natural", math.ceil(12 * D / 8), 2 * VECTOR),
    ],
)
def test_rare_full_rounds_count_with_their_probability(
    bench, problem, name, up_of_a_difference, down_of_a_difference
):
    method = replace(_fair(name), p=1e-3)  # no full round in the short run but its first
    sent = bench.traffic(problem, method)
    full, sampled = N * 2 * VECTOR, S * (up_of_a_difference + down_of_a_difference)
    assert sent.first == full
    assert sent.later == pytest.approx(1e-3 * full + (1 - 1e-3) * sampled)
    assert bench.probability_of_full_rounds(_fair("fedpage"), problem) == S / N
    assert bench.probability_of_full_rounds(_fair("svrp"), problem) == S / N
    assert bench.probability_of_full_rounds(_fair("saga"), problem) is None


def test_all_methods_search_the_same_steps(bench, problem):
    terms = bench.Terms()
    names = ["fedpage", "fedpage-full", "page", "pp-marina", "scaffold", "fedavg", "saga", "feddyn"]
    grids = {name: bench.grid(_fair(name), problem, terms) for name in names}
    assert len({tuple(values["step"]) for values in grids.values()}) == 1
    second = {name: values.keys() - {"step"} for name, values in grids.items()}
    assert second["fedpage"] == second["fedpage-full"] == {"rho"}
    assert second["scaffold"] == second["fedavg"] == {"eta_g"}
    assert second["page"] == second["pp-marina"] == second["saga"] == second["feddyn"] == set()


def test_labels_and_paths_tell_codecs(bench):
    assert bench.report.label(_fair("fedpage"), {}) == "FedPAGE"
    _, settings = build.split_settings("ef21-pp:up=topk:12:b=2")
    assert bench.report.label(_fair("ef21-pp"), settings) == "EF21-PP, up=topk:12, b=2"
    assert bench.as_path("ef21-pp:up=topk:12") == "ef21-pp_up_topk_12"
    assert bench.as_path("vrl-sgd") == "vrl-sgd"


def test_a_downlink_codec_is_counted_as_it_is_sent(bench, problem):
    method = fp.FedPAGE(S=S, K=2, eta_g=0.2, down="float32")
    history = fp.simulate(problem, method, rounds=20, seed=0, record_every=5)
    assert bench.report.bytes_down_in_paper(history).tolist() == history["bytes_down"].tolist()


def test_a_target_that_is_not_reached_has_a_dash_in_the_table(bench, problem):
    runs = [
        fp.simulate(problem, fp.PAGE(S=S, eta_g=0.2), rounds=30, seed=seed, record_every=1)
        for seed in range(3)
    ]
    within = sorted(run.best("grad_norm") for run in runs)
    got = {target: bench.report.cost(runs, target) for target in (0.2, within[0], 1e-9)}
    assert [got[target].reached for target in got] == [3, 1, 0]
    assert math.isinf(got[within[0]].up)  # one seed of three is not the median
    assert got[1e-9].best == within[1]
    terms = bench.Terms(seeds=3, tuned_for=((0.2, tuple(got)),))
    line = bench.report.table(
        "t", [bench.report.Line("page", "PAGE", got, {})], terms
    ).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1].split(" / ")[1:] == ["-", "-"]
    assert cells[1].split(" / ")[0] == f"{got[0.2].rounds:.0f}"
    assert cells[-2:] == ["3 / 1 / 0", f"{within[1]:.1e}".replace("e-0", "e-")]
    short = bench.report.short_table(
        "t", [bench.report.Line("page", "PAGE", got, {})], terms
    ).splitlines()[-1]
    total = f"{(got[0.2].up + got[0.2].down) / 1e6:.2g} / - / -"
    assert f"| {total} |" in short


def test_a_target_counts_only_below_the_first_loss(bench, problem):
    history = fp.simulate(problem, fp.PAGE(S=S, eta_g=0.2), rounds=2, seed=0, record_every=1)
    history.append(
        history.rows[-1] | {"round": 3, "loss": 2 * history.first_loss, "grad_norm": 1e-6}
    )
    assert bench.report.cost([history], 1e-3).reached == 0
    history.append(history.rows[-1] | {"round": 4, "loss": 0.5 * history.first_loss})
    assert bench.report.cost([history], 1e-3).rounds == 4


def test_a_benchmark_resumes_and_its_command_line_repeats_the_search(
    bench, tmp_path, run, monkeypatch
):
    case = bench.Case("census:rows=200", N, "robust")
    terms = bench.Terms(
        multiples=(0.25, 0.5), search=1_000, run=2_000, search_seeds=1, seeds=2, between=200,
        tuned_for=((0.2, (0.2,)), (0.1, (0.1, 1e-9))),
    )  # fmt: skip
    names, out = ["fedpage:up=natural", "vrl-sgd"], tmp_path / "out"
    lines, done = bench.evaluate(case, names, terms, out)
    trials = (out / "tuning" / case.name / "fedpage_up_natural" / "trials.jsonl").read_bytes()
    # two searches each: candidates, a fresh seed, final runs
    assert done == 2 * (4 + 1 + 2) + 2 * (2 + 1 + 2)
    assert bench.evaluate(case, names, terms, out) == (_without_new_runs(lines), 0)

    torn = out / "runs" / case.name / f"fedpage_up_natural-0.1-seed{bench.FRESH}.jsonl"
    torn.write_bytes(torn.read_bytes()[:-40])
    (out / "runs" / case.name / f"vrl-sgd-0.2-seed{bench.FRESH + 1}.jsonl").unlink()
    monkeypatch.setattr(bench, "tune", _assert_no_new_runs(bench.tune))
    again, done = bench.evaluate(case, names, terms, out)
    assert (again, done) == (_without_new_runs(lines), 2)
    more = bench.evaluate(case, ["vrl-sgd"], replace(terms, run=3_000), out)
    assert more[1] == 4  # with another budget all runs are new

    command = shlex.split(lines[0].chosen[0.1]["command"])
    assert math.isfinite(lines[0].costs[0.1].rounds)
    code, out_text, err = run(*command[1:])
    assert code == 0, err
    assert "fedpage run fedpage" in out_text
    assert "--up natural" in out_text
    assert (
        out / "tuning" / case.name / "fedpage_up_natural" / "trials.jsonl"
    ).read_bytes() == trials


def _without_new_runs(lines):
    return [
        replace(line, chosen={aim: {**found, "runs": 0} for aim, found in line.chosen.items()})
        for line in lines
    ]


def _assert_no_new_runs(tune):
    def call(*args, **options):
        found = tune(*args, **options)
        assert found.runs == 0
        return found

    return call


def test_the_command_line_chooses_methods_cases_and_steps(bench, tmp_path, monkeypatch, capsys):
    case = bench.Case("census:rows=200", N, "robust")
    small = bench.Terms(search=500, run=1_000, between=200, tuned_for=((0.2, (0.2,)),))
    monkeypatch.setattr(bench, "CASES", (case,))
    monkeypatch.setattr(bench, "Terms", lambda: small)
    monkeypatch.setattr(bench.fp.data.registry, "libsvm_file", lambda name: name)
    monkeypatch.setattr(bench.fp.data.registry, "find", lambda name: tmp_path)
    monkeypatch.setattr(bench.report, "IMAGE", tmp_path / "not drawn")
    words = f"--out {tmp_path} --cases {case.name} --methods saga,page cofig:up=natural"
    words += " --steps 1/4,1 --search-seeds 1 --seeds 2"
    monkeypatch.setattr(sys, "argv", ["communication.py", *words.split()])
    bench.main()
    text = capsys.readouterr().out
    assert "| method | rounds | MB up | MB down | MB total |" in text
    assert "| COFIG, up=natural |" in text
    assert (tmp_path / "communication.png").is_file()
    assert not bench.report.IMAGE.exists()
    tuned = json.loads((tmp_path / "tuned.json").read_text())
    assert [found["method"]["name"] for found in tuned] == ["saga", "page", "cofig:up=natural"]
    assert tuned[2]["method"]["up"] == "natural"

    monkeypatch.setattr(sys, "argv", ["communication.py", "--cases", "mnist"])
    with pytest.raises(SystemExit, match=f"unknown case 'mnist'; known are {case.name}"):
        bench.main()
