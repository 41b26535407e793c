"""Aggregations of replies: the mean, robust means, and a private mean with its accountant."""

import math
from importlib.util import find_spec
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpage as fp
from fedpage.core.messages import mean_rows
from fedpage.engine import privacy
from fedpage.engine.aggregation import Aggregation, ClippedMean, Mean, TrimmedMean, norms_of
from fedpage.engine.fixed_point import FixedPointMean
from fedpage.engine.privacy import PrivateMean, ReleaseJournal, read_noise_key

KEY = b"key"
needs_accountant = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="the extra 'privacy' is not installed"
)
PROBLEM = fp.LogisticRegression(fp.load("census", rows=300), clients=12)
FEDAVG = fp.FedAvg(S=6, K=3, eta_l=0.1)


def run(aggregation, method=FEDAVG, rounds=20, **options):
    return fp.simulate(
        PROBLEM, method, rounds=rounds, seed=3,
        options=fp.RunOptions(aggregation=aggregation, **options),
    )  # fmt: skip


def aggregate(aggregation, *chunks, key=KEY):
    accumulator = aggregation.begin(0, key, 100)
    for chunk in chunks:
        accumulator.add([chunk])
    return accumulator.finish(sum(map(len, chunks)))[0]


rows = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(size=(3 + seed % 9, 1 + seed % 5))
)


@given(rows)
@settings(max_examples=50, deadline=None)
def test_robust_means_are_the_mean_where_nothing_is_left_out_or_clipped(values):
    mean = mean_rows(values)
    longest = float(norms_of([values]).max())
    for aggregation in (Mean(), TrimmedMean(0.0), ClippedMean(longest * (1 + 1e-12))):
        assert aggregate(aggregation, values).tobytes() == mean.tobytes()
        halves = values[: len(values) // 2], values[len(values) // 2 :]
        assert aggregate(aggregation, *halves).tobytes() == mean.tobytes()


@given(rows, st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_a_trimmed_mean_is_the_mean_of_the_others_without_the_outliers(values, k, random):
    honest, d = len(values), values.shape[1]
    share = (k + 0.5) / (honest + 2 * k)
    if share >= 0.5:
        share = k / (honest + 2 * k) + 1e-9
    outliers = np.array([[1e300] * d] * k + [[-1e300] * d] * k)
    order = list(range(honest + 2 * k))
    random.shuffle(order)
    everyone = np.concatenate([values, outliers])[order]
    others = everyone[np.abs(everyone[:, 0]) < 1e300]
    assert math.floor(share * len(everyone)) == k
    assert aggregate(TrimmedMean(share), everyone).tobytes() == mean_rows(others).tobytes()


def test_one_client_moves_a_clipped_mean_by_the_bound_at_most():
    values = np.random.default_rng(0).normal(size=(10, 4)) * 0.1
    wrong = values.copy()
    wrong[2] = 1e300
    without = np.where(np.arange(10)[:, None] == 2, 0.0, values)
    moved = aggregate(ClippedMean(1.0), wrong) - aggregate(ClippedMean(1.0), without)
    assert np.linalg.norm(moved) == pytest.approx(1.0 / 10)


def test_norms_neither_overflow_nor_vanish():
    values = np.array([[3e200, 4e200], [3e-200, 4e-200], [0.0, 0.0]])
    assert norms_of([values]).tolist() == pytest.approx([5e200, 5e-200, 0.0])


@pytest.mark.parametrize(
    "aggregation",
    [
        TrimmedMean(0.2),
        ClippedMean(0.05),
        FixedPointMean(bound=100.0),
        pytest.param(PrivateMean(clip=0.1, noise=1.0), marks=needs_accountant),
    ],
    ids=lambda a: a.name,
)
def test_chunks_threads_and_a_resume_change_no_bit(aggregation, tmp_path):
    whole = run(aggregation)
    assert whole.same(run(aggregation, chunk=2, threads=2))
    assert not whole.same(run(None))
    options, where = fp.RunOptions(aggregation=aggregation), {"seed": 3, "out": tmp_path / "run"}
    fp.simulate(PROBLEM, FEDAVG, rounds=10, options=options, **where)
    options = fp.RunOptions(aggregation=aggregation, resume=True)
    resumed = fp.simulate(PROBLEM, FEDAVG, rounds=20, options=options, **where)
    assert resumed.same(whole)
    assert resumed.meta["aggregation"] == aggregation.describe()


@pytest.mark.parametrize(
    "text", ["mean", "trimmed:share=0.25", "clipped:bound=2.5", "secure:bound=2.5,least=4"]
)
def test_texts_are_read_as_written(text):
    assert Aggregation.from_text(text).text == text


# --- differential privacy ---------------------------------------------------------------------


def spend(ledger, clients, called=None):
    """Count a release of these clients' mean."""
    n = len(clients) if called is None else called
    ledger.add(0, [np.zeros(2)], np.array(clients, dtype=np.int64), n)


def exact_epsilon(noise, times, delta):
    """Return the smallest epsilon of so many Gaussian mechanisms (Balle and Wang 2018)."""
    mu, phi = math.sqrt(times) / noise, NormalDist().cdf

    def spent(epsilon):
        return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)

    low, high = 0.0, 500.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (1.1, 10), (4.0, 100)])
@needs_accountant
def test_epsilon_bounds_the_exact_one_from_above_closely(noise, times):
    settings = PrivateMean(clip=1.0, noise=noise, delta=1e-5)
    ledger = settings.make_ledger(FEDAVG, 3)
    assert ledger.measure() == {"epsilon": 0.0}
    for _ in range(times):
        spend(ledger, [1])
    exact = exact_epsilon(noise, times, 1e-5)
    assert exact <= ledger.measure()["epsilon"] < 1.15 * exact


@needs_accountant
def test_epsilon_counts_the_client_that_was_called_most_often():
    ledger = PrivateMean(clip=1.0, noise=2.0).make_ledger(FEDAVG, 4)
    for clients in ([0, 1], [1, 2], [1, 3]):
        spend(ledger, clients)
    alone = PrivateMean(clip=1.0, noise=2.0).make_ledger(FEDAVG, 4)
    for _ in range(3):
        spend(alone, [1])
    assert ledger.measure() == alone.measure()


@needs_accountant
def test_a_secret_cohort_spends_less_where_few_of_many_clients_are_sampled():
    method = fp.FedAvg(S=10)
    spent = {}
    for cohort in ("public", "secret"):
        ledger = PrivateMean(clip=1.0, noise=4.0, cohort=cohort).make_ledger(method, 1000)
        for _ in range(50):
            spend(ledger, range(10))
        spent[cohort] = ledger.measure()["epsilon"]
    assert 0 < spent["secret"] < spent["public"] / 4
    full = PrivateMean(clip=1.0, noise=4.0, cohort="secret").make_ledger(fp.FedAvg(S=10), 10)
    spend(full, range(10))
    assert full.measure()["epsilon"] >= exact_epsilon(2.0, 1, 1e-5)  # replaced: twice as far


@needs_accountant
def test_every_record_has_the_epsilon_so_far():
    history = run(PrivateMean(clip=0.1, noise=1.0))
    epsilon = history["epsilon"]
    assert epsilon[0] == 0.0
    assert (np.diff(epsilon) > 0).all()
    assert np.isfinite(epsilon).all()
    assert "epsilon" not in run(None).columns


def test_the_noise_has_the_stated_deviation_and_its_key_decides():
    zeros = np.zeros((5, 40_000))
    settings = PrivateMean(clip=2.0, noise=3.0)
    noisy = aggregate(settings, zeros)
    assert noisy.std() == pytest.approx(3.0 * 2.0 / 5, rel=0.02)
    assert abs(noisy.mean()) < 0.02
    assert abs(np.mean(noisy**3)) < 0.1
    assert np.mean(noisy**4) == pytest.approx(3 * 1.2**4, rel=0.1)
    assert (aggregate(settings, zeros, key=b"other") != noisy).any()
    assert (privacy.draw_normals(b"1", 10) != privacy.draw_normals(b"0", 10)).all()


def test_a_reply_is_clipped_before_the_noise():
    values = np.zeros((4, 3))
    values[0, 0] = 1e9
    clipped = np.zeros((4, 3))
    clipped[0, 0] = 2.0
    settings = PrivateMean(clip=2.0, noise=1e-12)
    assert np.allclose(aggregate(settings, values), clipped.mean(axis=0), atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipped_replies_are_never_longer_than_the_bound(dtype):
    random = np.random.default_rng(0)
    for bound in (0.1, 1.0, 3.7):
        values = (random.normal(size=(200, 50)) * 10.0 ** random.uniform(0, 6, (200, 1))).astype(
            dtype
        )
        for row in values:
            clipped = aggregate(ClippedMean(bound), row[None])
            assert clipped.dtype == dtype
            assert math.sqrt(math.fsum(float(v) ** 2 for v in clipped)) <= bound


def noise_of(settings, values, round=0, key=KEY):
    accumulator = settings.begin(round, key, 100)
    accumulator.add([values])
    return accumulator.finish(len(values))[0] - values.mean(axis=0)


def test_a_mean_that_differs_in_anything_gets_independent_noise():
    """The difference of two means with the same noise would reveal replies."""
    values = np.random.default_rng(0).normal(size=(6, 2000)) * 1e-3
    settings = PrivateMean(clip=1.0, noise=1.0)
    first = noise_of(settings, values)
    assert noise_of(settings, values).tobytes() == first.tobytes()
    one_less = values[:-1]
    same_mean = np.repeat(values.mean(axis=0)[None], 3, axis=0)
    nudged = values.copy()
    nudged[0, 0] = np.nextafter(nudged[0, 0], 1.0)
    for other in (
        noise_of(settings, one_less),
        noise_of(settings, np.concatenate([same_mean, same_mean])),
        noise_of(settings, nudged + np.spacing(nudged)),
        noise_of(settings, values, round=1),
        noise_of(settings, values, key=b"other"),
        noise_of(PrivateMean(clip=1.0, noise=2.0), values),
        noise_of(PrivateMean(clip=1.0, noise=1.0, delta=1e-6), values),
    ):
        correlation = np.corrcoef(first, other)[0, 1]
        assert abs(correlation) < 5 / math.sqrt(2000)


@needs_accountant
def test_rounds_with_missing_clients_are_not_amplified_by_sampling():
    settings = PrivateMean(clip=1.0, noise=4.0, cohort="secret")
    method = fp.FedAvg(S=10)
    complete, incomplete, whole = (settings.make_ledger(method, 1000) for _ in range(3))
    full = settings.make_ledger(fp.FedAvg(S=1000), 1000)
    for _ in range(20):
        spend(complete, range(10), 10)
        spend(incomplete, range(9), 10)
        spend(full, range(1000), 1000)
    assert incomplete.measure() == full.measure()
    assert complete.measure()["epsilon"] < incomplete.measure()["epsilon"] / 4
    assert whole.measure() == {"epsilon": 0.0}


def test_delta_must_be_below_one_over_the_number_of_clients():
    with pytest.raises(fp.InputError, match=r"delta must be below 1/N = 0.0833 for 12 clients"):
        run(PrivateMean(clip=1.0, noise=1.0, delta=0.1))


def journal_of(path, N=4):
    return ReleaseJournal(path / "releases.jsonl", N)


@needs_accountant
def test_a_round_that_is_repeated_with_other_answers_is_counted_twice(tmp_path):
    """A server that is killed between a mean and its checkpoint repeats the round."""
    settings = PrivateMean(clip=1.0, noise=2.0)

    def count(journal, means):
        ledger = settings.make_ledger(FEDAVG, 4)
        ledger.keep(journal)
        for round, mean in means:
            ledger.add(round, [np.array([mean])], np.array([0, 1]), 2)
        return ledger

    journal = journal_of(tmp_path)
    first = count(journal, [(0, 0.5), (1, 0.7)])
    checkpoint = first.snapshot()
    first.add(2, [np.array([0.9])], np.array([0, 1]), 2)
    spent = first.measure()
    journal.close()
    with open(tmp_path / "releases.jsonl", "ab") as stream:
        stream.write(b'[3, "ab", [0')  # killed while it wrote, before the mean was used
    assert (tmp_path / "releases.jsonl").stat().st_mode & 0o077 == 0

    again = count(journal_of(tmp_path), [])
    again.restore(checkpoint)
    assert again.measure() == spent
    again.add(2, [np.array([0.9])], np.array([0, 1]), 2)
    assert again.measure() == spent
    again.add(2, [np.array([0.8])], np.array([0, 1]), 2)
    assert again.measure()["epsilon"] > spent["epsilon"]
    four = settings.make_ledger(FEDAVG, 4)
    for _ in range(4):
        spend(four, [0, 1])
    assert again.measure() == four.measure()


@pytest.mark.parametrize("text", [b"nonsense\n", b'[0, "a", [7], 1]\n', b'{"a": 1}\n'])
def test_a_damaged_journal_is_refused(tmp_path, text):
    (tmp_path / "releases.jsonl").write_bytes(text)
    with pytest.raises(fp.InputError, match="the privacy budget is not known"):
        journal_of(tmp_path)


def test_the_noise_key_is_secret_random_and_kept(tmp_path):
    key = read_noise_key(tmp_path / "noise.key")
    assert len(key) == 32
    assert read_noise_key(tmp_path / "noise.key") == key
    assert (tmp_path / "noise.key").stat().st_mode & 0o177 == 0
    (tmp_path / "noise.key").unlink()
    assert read_noise_key(tmp_path / "noise.key") != key
    (tmp_path / "noise.key").write_bytes(b"short")
    with pytest.raises(fp.InputError, match="not the key"):
        read_noise_key(tmp_path / "noise.key")


def test_a_missing_accountant_is_reported_at_the_start(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(fp.InputError, match=r"fedpage\[privacy\]"):
        run(PrivateMean(clip=1.0, noise=1.0))
