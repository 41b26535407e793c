"""Laws of codecs: what is sent is what the simulator used, means, variances, contractions, bits."""

import contextlib
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support import refusal

from fedpage import codecs
from fedpage.codecs import CODECS, Keys, as_codec
from fedpage.codecs.base import bits_of
from fedpage.core.errors import InputError

DRAWS = 20_000
FLOATS = (np.float64, np.float32)
SEEDS = np.random.default_rng

PLAIN = (
    "none", "float32", "float16", "bfloat16", "randk:1", "randk:0.3", "randk:0.99", "permk",
    "topk:1", "topk:0.2", "topk:0.9", "natural", "dither:1", "dither:3", "dither:20", "sign",
    "bernoulli:0.5", "bernoulli:1.0", "scaled(randk:0.3)", "scaled(natural)", "scaled(dither:3)",
    "scaled(bernoulli:0.5)", "scaled(permk)",
)  # fmt: skip
CHAINS = (
    "randk:0.3+natural", "randk:0.3+dither:3", "randk:0.3+sign", "randk:0.3+float32",
    "permk+natural", "permk+dither:2", "permk+sign", "permk+bfloat16", "topk:0.3+natural",
    "topk:0.9+dither:7", "topk:0.3+sign", "topk:0.3+float16", "bernoulli:0.5+natural",
    "bernoulli:0.5+dither:3", "bernoulli:0.5+sign", "bernoulli:0.5+float32",
    "scaled(randk:0.3+natural)", "scaled(bernoulli:0.5+dither:3)", "scaled(permk+natural)",
)  # fmt: skip
ALL = PLAIN + CHAINS


def special_rows(d, dtype):
    """Return ten rows: ordinary, wide-ranging, zero, subnormal, huge and non-finite numbers."""
    rng = SEEDS(d)
    info = np.finfo(dtype)
    wide = rng.standard_normal((10, d)) * 2.0 ** rng.integers(-100, 100, (10, d))
    v = wide.astype(dtype)
    v[0] = rng.standard_normal(d)
    v[2], v[3], v[4], v[5] = 0.0, -0.0, 3 * info.smallest_subnormal, -info.max
    v[6] = info.max / 2
    v[7, 0], v[8, -1] = np.inf, np.nan
    v[9] = np.where(np.arange(d) % 2, 0.0, -info.tiny)
    return v


def draw_keys(n, round=0, called=None):
    """Return keys of n of the called clients, whose numbers are not their ranks."""
    clients = 5 + 3 * np.arange(n)
    everyone = None if called is None else 5 + 3 * np.arange(called)
    return Keys.draw(11, round, clients, field=2, called=everyone)


def equal(a, b):
    """Compare bit for bit; any NaN is a NaN."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    return np.where(np.isnan(a), np.isnan(b), bits_of(a) == bits_of(b)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("text", ALL)
def test_what_is_sent_is_what_the_simulator_used(text, dtype):
    codec = as_codec(text)
    for d in (1, 2, 10, 23, 64):
        v = special_rows(d, dtype)[: min(d, 10)]
        v = v[[0, *range(len(v))]][1:] if d > 1 else v
        keys = draw_keys(len(v), round=d)
        seen, payload = codec.apply(v, keys), codec.encode(v, keys)
        assert seen.shape == v.shape
        assert seen.dtype == dtype
        assert not seen[2:4].any()  # zero stays zero
        assert payload.dtype == np.uint8
        assert payload.ndim == 1
        assert equal(codec.decode(payload, d, dtype, keys), seen)
        sizes = codec.sizes(d, dtype, keys)
        assert len(payload) == (-(-sizes // 8)).sum()  # the bytes counted are the bytes sent
        assert sizes.max(initial=0) <= codec.bits(d, dtype)
        assert codec.numbers(d, keys).max(initial=0) <= codec.floats(d)
        if codec.has_fixed_size:
            assert (sizes == codec.bits(d, dtype)).all()
            assert (codec.numbers(d, keys) == codec.floats(d)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("text", ALL)
def test_a_row_alone_is_its_row_in_the_batch(text, dtype):
    codec, d, n = as_codec(text), 23, 10
    v, keys = special_rows(d, dtype), draw_keys(n)
    seen, payload = codec.apply(v, keys), codec.encode(v, keys)
    ends = np.cumsum(-(-codec.sizes(d, dtype, keys) // 8))
    for i in range(n):
        own = keys.at(np.array([i]))
        assert equal(codec.apply(v[i : i + 1], own), seen[i : i + 1])
        start = ends[i - 1] if i else 0
        assert codec.encode(v[i : i + 1], own).tobytes() == payload[start : ends[i]].tobytes()
    some = np.array([7, 2, 4])
    assert equal(codec.apply(v[some], keys.at(some)), seen[some])
    assert equal(codec.apply(np.asfortranarray(v), keys), seen)


def test_codecs_without_randomness_need_no_keys():
    nothing = Keys(np.empty(0, np.uint64), np.uint64(0))
    v = special_rows(23, np.float64)
    for text in ALL:
        codec = as_codec(text)
        if codec.is_random:
            same = equal(codec.apply(v, draw_keys(10)), codec.apply(v, draw_keys(10, round=1)))
            assert same == (text in ("randk:0.99", "bernoulli:1.0"))  # which keep everything
        else:
            seen = codec.apply(v, nothing)
            assert equal(codec.decode(codec.encode(v, nothing), 23, np.float64, nothing), seen)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "text", ["none", "float32", "float16", "bfloat16", "natural", "dither:3", "sign", "topk:1"]
)
def test_a_diverged_vector_stays_so(text, dtype):
    for bad in (np.inf, -np.inf, np.nan):
        v = np.ones((1, 9), dtype)
        v[0, 4] = bad
        assert not np.isfinite(as_codec(text).apply(v, draw_keys(1))).all()


# Means, variances and contractions, each over 20,000 draws at once.

VECTORS = {
    "gaussian": SEEDS(1).standard_normal(16),
    "heavy": SEEDS(2).standard_cauchy(16),
    "one-hot": np.eye(16)[5] * -3.0,
    "constant": np.full(16, 4.0 / 3.0),
}
UNBIASED = (
    "randk:1", "randk:5", "randk:16", "natural", "dither:1", "dither:2", "dither:5",
    "bernoulli:0.3", "randk:5+natural", "randk:5+dither:2", "bernoulli:0.3+natural",
    "bernoulli:0.6+dither:3",
)  # fmt: skip
ATTAINED = {
    # codec: a vector whose variance is omega, not less
    "randk:1": "gaussian",
    "randk:5": "heavy",
    "bernoulli:0.3": "one-hot",
    "natural": "constant",  # a third above a power of two
    "dither:2": "constant",  # 2/sqrt(16) = 1/2: halfway between two levels
    "randk:5+natural": "constant",
    "bernoulli:0.3+natural": "constant",
}
MANY = Keys.draw(3, 1, np.arange(DRAWS))


def repeat(v, dtype=np.float64):
    return np.broadcast_to(v.astype(dtype), (DRAWS, len(v))).copy()


def check_mean(seen, v):
    error = np.abs(seen.mean(axis=0, dtype=np.float64) - v)
    deviation = seen.std(axis=0, dtype=np.float64) / math.sqrt(len(seen))
    rounding = 1e-12 if seen.dtype == np.float64 else 1e-6
    assert (error <= 4.0 * deviation + rounding * np.abs(v).max()).all()


def relative_errors(seen, v):
    """Return |C(v) - v|^2 / |v|^2 of each draw: their mean, and its standard error."""
    each = ((seen - v) ** 2).sum(axis=1) / (v @ v)
    return each.mean(), each.std() / math.sqrt(len(each))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("text", UNBIASED)
def test_unbiased_codecs_have_their_mean_and_variance(text, dtype):
    codec = as_codec(text)
    omega = codec.omega(16)
    assert codec.is_unbiased
    assert codec.alpha(16) == (1.0 - omega if omega < 1.0 else None)
    for name, v in VECTORS.items():
        seen = codec.apply(repeat(v, dtype), MANY)
        check_mean(seen, v.astype(dtype))
        variance, error = relative_errors(seen.astype(np.float64), v)
        assert variance <= omega + 4.0 * error + (1e-12 if dtype is np.float64 else 1e-6)
        if ATTAINED.get(text) == name:
            assert variance >= omega - 4.0 * error


CONTRACTIVE: dict[str, str | None] = {
    # codec: a vector whose contraction is alpha, not more
    "topk:5": "constant", "sign": "one-hot", "scaled(randk:5)": "heavy",
    "scaled(bernoulli:0.3)": "heavy", "randk:5+sign": "one-hot", "topk:5+natural": "constant",
    **dict.fromkeys((
        "topk:1", "topk:16", "scaled(natural)", "scaled(dither:2)", "scaled(randk:5+natural)",
        "topk:5+dither:3", "topk:5+sign", "bernoulli:0.3+sign", "randk:12", "natural", "dither:5",
        "topk:5+float32",
    )),
}  # fmt: skip


@pytest.mark.parametrize("text", CONTRACTIVE)
def test_contractive_codecs_contract(text):
    codec = as_codec(text)
    alpha = codec.alpha(16)
    assert 0.0 < alpha <= 1.0
    for name, v in VECTORS.items():
        remaining, error = relative_errors(codec.apply(repeat(v), MANY), v)
        assert remaining <= 1.0 - alpha + 4.0 * error + 1e-12
        if CONTRACTIVE[text] == name:
            assert remaining >= 1.0 - alpha - 4.0 * error - 1e-12
        if (text, name) == ("sign", "constant"):  # all signs and sizes are sent
            assert remaining <= 1e-25


CONSTANTS = [  # at d = 123: omega, alpha, bits of float64 and float32, numbers
    ("none", 0.0, 1.0, 123 * 64, 123 * 32, 123),
    ("float32", 0.0, 1.0, 123 * 32, 123 * 32, 123),
    ("float16", 0.0, 1.0, 123 * 16, 123 * 16, 123),
    ("bfloat16", 0.0, 1.0, 123 * 16, 123 * 16, 123),
    ("randk:12", 123 / 12 - 1, None, 12 * 64, 12 * 32, 12),
    ("randk:0.1", 123 / 12 - 1, None, 12 * 64, 12 * 32, 12),
    ("randk:100", 0.23, 0.77, 100 * 64, 100 * 32, 100),
    ("permk:20", 19.0, None, 7 * 64, 7 * 32, 7),
    ("scaled(permk:20)", None, 1 / 20, 7 * 64, 7 * 32, 7),
    ("permk:20+sign", None, 1 / 20 / 7, 64 + 7, 32 + 7, 8),
    ("topk:12", None, 12 / 123, 12 * 64 + 12 * 7, 12 * 32 + 12 * 7, 12),  # a list of positions
    ("topk:17", None, 17 / 123, 17 * 64 + 17 * 7, 17 * 32 + 17 * 7, 17),
    ("topk:18", None, 18 / 123, 18 * 64 + 123, 18 * 32 + 123, 18),  # a bitmap
    ("natural", 1 / 8, 7 / 8, 123 * 12, 123 * 9, 123),
    ("dither:1", math.sqrt(123), None, 64 + 123 * 2, 32 + 123 * 2, 124),
    ("dither:3", 123 / 36, None, 64 + 123 * 3, 32 + 123 * 3, 124),
    ("dither:4", 123 / 64, None, 64 + 123 * 4, 32 + 123 * 4, 124),  # five levels need three bits
    ("dither:7", 123 / 196, 1 - 123 / 196, 64 + 123 * 4, 32 + 123 * 4, 124),
    ("dither:8", 123 / 256, 1 - 123 / 256, 64 + 123 * 5, 32 + 123 * 5, 124),
    ("sign", None, 1 / 123, 64 + 123, 32 + 123, 124),
    ("bernoulli:0.25", 3.0, None, 123 * 64, 123 * 32, 123),
    ("scaled(randk:12)", None, 12 / 123, 12 * 64, 12 * 32, 12),
    ("scaled(natural)", None, 8 / 9, 123 * 12, 123 * 9, 123),
    ("randk:12+natural", 123 / 12 * 9 / 8 - 1, None, 12 * 12, 12 * 9, 12),
    ("randk:12+dither:2", 123 / 12 * (1 + 12 / 16) - 1, None, 64 + 12 * 3, 32 + 12 * 3, 13),
    ("randk:12+float32", 123 / 12 - 1, None, 12 * 32, 12 * 32, 12),
    ("topk:12+natural", None, 12 / 123 * 7 / 8, 12 * 12 + 12 * 7, 12 * 9 + 12 * 7, 12),
    ("topk:12+dither:1", None, None, 64 + 12 * 9, 32 + 12 * 9, 13),
    ("topk:12+sign", None, 1 / 123, 64 + 12 + 12 * 7, 32 + 12 + 12 * 7, 13),
    ("bernoulli:0.25+sign", None, 1 / 4 / 123, 64 + 123, 32 + 123, 124),
]


@pytest.mark.parametrize(("text", "omega", "alpha", "long", "short", "floats"), CONSTANTS)
def test_constants_and_bits(text, omega, alpha, long, short, floats):
    codec = as_codec(text)
    found = codec.omega(123), codec.alpha(123)
    for value, wanted in zip(found, (omega, alpha), strict=True):
        assert value == (None if wanted is None else pytest.approx(wanted))
    assert codec.is_unbiased == (omega is not None)
    assert (codec.bits(123, np.float64), codec.bits(123, np.float32)) == (long, short)
    assert codec.floats(123) == floats
    assert as_codec("permk").omega(123) == 122.0


def test_the_documentation_has_these_bits():
    text = (Path(__file__).parents[2] / "docs" / "codecs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|.*\| (\d+) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 15
    for codec, bits in rows:
        assert as_codec(codec).bits(123, np.float64) == int(bits)
    assert {as_codec(codec).label for codec, _ in rows} == set(CODECS)


def test_shares_of_d():
    for k, d, kept in ((0.1, 123, 12), (0.1, 3, 1), (0.999, 4, 4), (0.5, 7, 4), (3, 3, 3)):
        assert codecs.RandK(k).floats(d) == codecs.TopK(k).floats(d) == kept
    for cls in (codecs.RandK, codecs.TopK):
        with pytest.raises(InputError, match=r"cannot keep 4 of 3 numbers; choose k of at most 3"):
            cls(4).bits(3, np.float64)


# Each codec.


def test_a_randk_mask_is_regenerated_from_the_key_alone():
    codec, d = as_codec("randk:7"), 40
    v, keys = SEEDS(0).standard_normal((30, d)), draw_keys(30)
    seen = codec.apply(v, keys)
    kept = seen != 0
    assert (kept.sum(axis=1) == 7).all()
    np.testing.assert_allclose(seen[kept], (v * (40 / 7))[kept], rtol=1e-15)
    assert (codec.apply(np.ones((30, d)), keys) != 0).tobytes() == kept.tobytes()
    received = codec.decode(codec.encode(v, keys), d, np.float64, keys)
    assert ((received != 0) == kept).all()
    masks = {row.tobytes() for r in range(3) for row in codec.apply(v, draw_keys(30, r)) != 0}
    assert len(masks) == 90  # of each client in each round
    assert equal(as_codec("scaled(randk:7)").apply(v, keys), np.where(kept, v, 0.0))


@pytest.mark.parametrize("k", [2, 40])  # by search and by a table
def test_every_position_is_equally_likely(k):
    seen = as_codec(f"randk:{k}").apply(np.ones((DRAWS, 60)), MANY) != 0
    assert (seen.sum(axis=1) == k).all()
    share = k / 60
    assert np.abs(seen.mean(axis=0) - share).max() < 4.5 * math.sqrt(share * (1 - share) / DRAWS)
    both = (seen[:, 0] & seen[:, 1]).mean()
    wanted = share * (k - 1) / 59
    assert abs(both - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / DRAWS)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 23])
def test_permk_has_each_number_from_one_client(n):
    codec, d = as_codec("permk"), 23
    v, keys = SEEDS(n).standard_normal((n, d)), draw_keys(n)
    seen = codec.apply(v, keys)
    assert ((seen != 0).sum(axis=0) == 1).all()
    assert set((seen != 0).sum(axis=1)) <= {d // n, -(-d // n)}
    sizes = codec.sizes(d, np.float64, keys)
    assert (sizes == 64 * (seen != 0).sum(axis=1)).all()
    assert (codec.numbers(d, keys) == sizes // 64).all()
    np.testing.assert_allclose(seen[seen != 0], n * v[seen != 0], rtol=1e-15)
    same = codec.apply(np.broadcast_to(v[:1], v.shape).copy(), keys)
    np.testing.assert_allclose(same.mean(axis=0), v[0], rtol=1e-15)  # exact if clients agree
    assert equal(as_codec(f"permk:{n}").apply(v, keys), seen)


def test_permk_is_unbiased_with_its_joint_variance():
    """Variance of the mean: mean |v_i|^2 - |mean v_i|^2, also if n does not divide d."""
    n, d, rounds = 3, 5, 6_000
    v = SEEDS(4).standard_normal((n, d)) + 1.0
    codec = as_codec("permk")
    seen = np.stack([codec.apply(v, draw_keys(n, r)) for r in range(rounds)])
    check_mean(seen.mean(axis=1), v.mean(axis=0))
    for i in range(n):
        check_mean(seen[:, i], v[i])
        variance, error = relative_errors(seen[:, i], v[i])
        assert abs(variance - (n - 1)) <= 4 * error
    each = ((seen.mean(axis=1) - v.mean(axis=0)) ** 2).sum(axis=1)
    wanted = (v**2).sum() / n - (v.mean(axis=0) ** 2).sum()
    assert abs(each.mean() - wanted) <= 4 * each.std() / math.sqrt(rounds)


def test_permk_needs_its_clients():
    v = np.ones((3, 9))
    with pytest.raises(InputError, match="needs the number of called clients and each"):
        as_codec("permk").apply(v, draw_keys(3)._replace(ranks=None))
    with pytest.raises(InputError, match="needs the number of called clients and each"):
        as_codec("permk").apply(v, draw_keys(3)._replace(called=2))
    with pytest.raises(InputError, match="3 clients are called, not 4; write permk:3"):
        as_codec("permk:4").encode(v, draw_keys(3))
    with pytest.raises(InputError, match="12 clients cannot share 9 numbers"):
        as_codec("permk").apply(v, draw_keys(3, called=12))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [1, 3, 8, 19, 20])
def test_topk_keeps_the_largest_absolute_values(k, dtype):
    rng, d = SEEDS(k), 20
    v = np.concatenate(
        [
            special_rows(d, dtype),
            rng.standard_normal((50, d)).astype(dtype),
            rng.integers(-2, 3, (50, d)).astype(dtype),  # many ties
            -np.abs(rng.standard_normal((5, d))).astype(dtype),
        ]
    )
    size = np.where(np.isnan(v), np.inf, np.abs(v.astype(np.float64)))
    size[8, -1] = np.inf  # its NaN is above all
    order = np.argsort(-size, axis=1, kind="stable")[:, :k]
    wanted = np.zeros_like(v)
    np.put_along_axis(wanted, order, np.take_along_axis(v, order, axis=1), axis=1)
    assert equal(as_codec(f"topk:{k}").apply(v, draw_keys(len(v))), wanted)


def test_natural_rounds_to_neighbouring_powers_of_two():
    v = np.abs(SEEDS(0).standard_normal((50, 40))) * 2.0 ** np.arange(-20, 20)
    v[:, ::2] *= -1
    seen = as_codec("natural").apply(v, draw_keys(50))
    low = 2.0 ** np.floor(np.log2(np.abs(v)))
    assert (np.sign(seen) == np.sign(v)).all()
    assert ((np.abs(seen) == low) | (np.abs(seen) == 2 * low)).all()
    powers = 2.0 ** np.arange(-1022, 1024)[None]
    assert equal(as_codec("natural").apply(powers, draw_keys(1)), powers)


@pytest.mark.parametrize("dtype", FLOATS)
def test_natural_at_the_ends_of_the_range(dtype):
    info, codec = np.finfo(dtype), as_codec("natural")
    top = np.full((1, 200), info.max, dtype)
    assert (codec.apply(top, draw_keys(1)) == dtype(2.0) ** (info.maxexp - 1)).all()
    tiny = np.full((1, 50), info.tiny, dtype)
    assert (codec.apply(tiny, draw_keys(1)) == info.tiny).all()
    below = np.nextafter(tiny, dtype(0))
    assert (codec.apply(below, draw_keys(1)) == 0).all()
    above = tiny * dtype(1.5)
    assert set(codec.apply(above, draw_keys(1))[0].tolist()) == {info.tiny, 2 * info.tiny}


@pytest.mark.parametrize("s", [1, 2, 3, 4, 11, 1000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dither_rounds_to_neighbouring_levels_of_the_norm(s, dtype):
    v = SEEDS(s).standard_normal((40, 9)).astype(dtype)
    v[0], v[1] = 0.0, np.eye(9)[3] * -5.0
    seen = as_codec(f"dither:{s}").apply(v, draw_keys(40))
    norm = np.sqrt((v.astype(np.float64) ** 2).sum(axis=1, keepdims=True)).astype(dtype)
    norm = norm.astype(np.float64)
    with np.errstate(invalid="ignore"):
        levels = np.nan_to_num(seen / norm * s)
        exact = np.nan_to_num(v / norm * s)
    assert np.abs(levels - np.rint(levels)).max() < 1e-3
    assert (np.abs(levels - exact) < 1 + 1e-3).all()
    assert (seen[:2] == v[:2]).all()  # zero, and a level of its own
    if s >= 11:
        assert np.abs(np.rint(levels)).max() > 10


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e200, 1e307])
def test_dither_and_sign_at_the_ends_of_the_range(size):
    v = size * np.array([[3.0, -4.0]])
    seen = as_codec("dither:5").apply(v, draw_keys(1))
    np.testing.assert_allclose(seen, v, rtol=1e-3 if size < 1e-300 else 1e-14)
    seen = as_codec("sign").apply(v, draw_keys(1))
    np.testing.assert_allclose(seen, size * np.array([[3.5, -3.5]]), rtol=1e-3)


def test_bernoulli_sends_all_or_nothing():
    codec, v = as_codec("bernoulli:0.25"), SEEDS(0).standard_normal((400, 3))
    seen, sizes = codec.apply(v, draw_keys(400)), codec.sizes(3, np.float64, draw_keys(400))
    sends = sizes > 0
    assert 70 <= sends.sum() <= 130
    assert (sizes[sends] == 192).all()
    assert equal(seen, np.where(sends[:, None], v / 0.25, 0.0))
    assert len(codec.encode(v, draw_keys(400))) == 24 * sends.sum()
    assert (codec.numbers(3, draw_keys(400)) == 3 * sends).all()


@pytest.mark.parametrize("text", ["bernoulli:0.3", "randk:3"])
def test_factors_are_exact_in_float32(text):
    """A factor that is rounded to float32 before it is applied would bias every number."""
    codec, v = as_codec(text), SEEDS(1).standard_normal((50, 7)).astype(np.float32)
    seen = codec.apply(v, draw_keys(50))
    factor = 1 / 0.3 if text == "bernoulli:0.3" else 7 / 3
    wanted = (v.astype(np.float64) * factor).astype(v.dtype)
    assert (seen == np.where(seen != 0, wanted, 0)).all()


def nearest(x, digits, least):
    """Round a float to a format with so many digits and a least exponent, ties to even."""
    if x == 0.0 or not math.isfinite(x):
        return x
    exponent = max(math.frexp(x)[1] - 1, least)
    step = Fraction(2) ** (exponent - digits)
    return float(round(Fraction(x) / step) * step)


@pytest.mark.parametrize(
    ("text", "digits", "least", "largest"),
    [
        ("float32", 23, -126, float(np.finfo(np.float32).max)),
        ("float16", 10, -14, 65504.0),
        ("bfloat16", 7, -126, float.fromhex("0x1.FEp127")),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_casts_round_to_nearest_even(text, digits, least, largest, dtype):
    rng = SEEDS(digits)
    x = rng.standard_normal(3000) * 2.0 ** rng.integers(-160, 140, 3000)
    near = 2.0 ** rng.integers(-30, 20, 3000)
    ties = near * (1 + (2 * rng.integers(0, 2**digits, 3000) + 1) * 2.0 ** (-digits - 1))
    twice = ties * (1 + rng.choice([-1, 1], 3000) * 2.0**-50)  # rounding twice would be wrong
    small = rng.integers(0, 64, 200) * 2.0 ** (least - digits - 2)
    ends = [largest, largest * (1 + 2.0 ** (-digits - 3)), largest * 1.01, -largest, np.inf, 0.0]
    with np.errstate(over="ignore"):
        v = np.concatenate([x, ties, twice, small, ends]).astype(dtype)[None]
    seen = as_codec(text).apply(v, draw_keys(1))[0]
    wanted = np.array([nearest(float(value), digits, least) for value in v[0]])
    wanted = np.where(np.abs(wanted) > largest, np.copysign(np.inf, wanted), wanted)
    assert (seen == wanted).all()
    if text == "float32" and dtype == np.float32:
        assert equal(seen, v[0])


# Payloads.


def bit_string(payload):
    """Return the bits of a payload in the order of their places."""
    return "".join(f"{byte:08b}"[::-1] for byte in payload.tolist())


def numbers(bits, width):
    return [int(bits[i : i + width][::-1], 2) for i in range(0, len(bits) - width + 1, width)]


def test_a_payload_is_what_the_documentation_says():
    v = np.array([[0.0, -8.0, 1.0, 0.5, 4.0, 0.25, 2.0, 0.0]])  # its norm is not a level
    keys = draw_keys(1)
    top = as_codec("topk:2").encode(v, keys)
    assert top[:16].view("<f8").tolist() == [-8.0, 4.0]
    assert numbers(bit_string(top[16:]), 3) == [1, 4]
    top = as_codec("topk:3").encode(v, keys)
    assert bit_string(top[24:]) == "01001010"
    natural = bit_string(as_codec("natural").encode(v, keys))
    exponents = numbers(natural, 12)
    assert exponents == [0, 2048 + 1026, 1023, 1022, 1025, 1021, 1024, 0]
    sign = as_codec("sign").encode(v, keys)
    assert sign[:8].view("<f8").tolist() == [np.abs(v).mean()]
    assert bit_string(sign[8:]) == "01000000"
    one = np.array([[0.0, -5.0, 0.0]])
    dither = as_codec("dither:4").encode(one, keys)
    assert dither[:8].view("<f8").tolist() == [5.0]
    assert numbers(bit_string(dither[8:])[:12], 4) == [0, 2 * 4 + 1, 0]
    both = as_codec("topk:2+sign").encode(v, keys)  # mean size, signs, positions
    assert both[:8].view("<f8").tolist() == [6.0]
    assert bit_string(both[8:]) == "10" + "100" + "001"


def test_payloads_never_change():
    """A run can be resumed and a federation upgraded, so these bytes must stay."""
    v, keys = SEEDS(5).integers(-9, 9, (2, 7)).astype(np.float64), draw_keys(2, 1)
    found = {text: as_codec(text).encode(v, keys).tobytes().hex() for text in GOLDEN}
    assert found == GOLDEN


GOLDEN = {
    "randk:1": "00000000000022c000000000000010c0",
    "permk+float16": "00bc0040004580c800c400c4003c",
    "topk:2+bfloat16": "a04010c111004110c111",
    "natural": "011440022c40ff0b000004012c40021cc001fc3f000c",
    "dither:3": "263577e24b1528405209007c2d6714fba32b40503100",
    "bernoulli:0.5+sign": "2549922449920c4014",
    "randk:3+natural": "010440020402fc3f010c",
}


def refuse(codec, payload, d, keys, words):
    text = refusal(codec.decode, np.asarray(payload, np.uint8), d, np.float64, keys)
    assert words in text


@pytest.mark.parametrize("text", ALL)
def test_a_payload_of_another_length_is_refused(text):
    codec, d, keys = as_codec(text), 23, draw_keys(5, round=1)
    payload = codec.encode(special_rows(d, np.float64)[:5], keys)
    for wrong in (payload[:-1], np.append(payload, np.uint8(0))):
        refuse(codec, wrong, d, keys, "the payload has ")
    with pytest.raises(InputError, match="1-D array of bytes"):
        codec.decode(payload.astype(np.int16), d, np.float64, keys)


@pytest.mark.parametrize("text", ALL)
def test_any_payload_is_decoded_or_refused(text):
    codec, keys, rng = as_codec(text), draw_keys(5), SEEDS(9)
    for dtype in FLOATS:
        for d in (5, 16, 23):
            length = int((-(-codec.sizes(d, dtype, keys) // 8)).sum())
            for _ in range(8):
                payload = rng.integers(0, 256, length).astype(np.uint8)
                with contextlib.suppress(InputError):
                    assert codec.decode(payload, d, dtype, keys).shape == (5, d)


def test_impossible_contents_are_refused():
    keys, floats = draw_keys(1), [0] * 16
    topk = as_codec("topk:2")
    topk.decode(np.array([*floats, 0b110_001, 0], np.uint8)[:17], 7, np.float64, keys)
    refuse(topk, [*floats, 0b001_110], 7, keys, "ascending and below 7")
    refuse(topk, [*floats, 0b001_001], 7, keys, "ascending and below 7")  # a duplicate
    refuse(topk, [*floats, 0b111_001], 7, keys, "ascending and below 7")
    refuse(topk, [*floats, 0b1110_001], 7, keys, "bits that mean nothing")
    many = as_codec("topk:3")
    refuse(many, [*floats, *[0] * 8, 0b0001111], 7, keys, "does not have 3 ones")
    refuse(many, [*floats, *[0] * 8, 0b0000011], 7, keys, "does not have 3 ones")
    dither, norm = as_codec("dither:2"), np.array([1.0]).view(np.uint8).tolist()
    refuse(dither, [*norm, 0b110], 1, keys, "a level is above 2")
    assert dither.decode(np.array([*norm, 0b101], np.uint8), 1, np.float64, keys) == [[-1.0]]
    minus = np.array([-1.0]).view(np.uint8).tolist()
    refuse(dither, [*minus, 0b010], 1, keys, "a norm is negative")
    refuse(as_codec("sign"), [*minus, 0], 1, keys, "is negative")


# Text.


@pytest.mark.parametrize("text", [*ALL, "permk:20"])
def test_codecs_have_a_text_form(text):
    codec = as_codec(text)
    assert str(codec) == text
    assert as_codec(str(codec)) == codec
    assert as_codec(codec) is codec
    assert hash(as_codec(text.upper().replace("+", " + "))) == hash(codec)


def test_other_ways_to_write_a_codec():
    assert as_codec(None) is codecs.IDENTITY
    assert as_codec("identity") == codecs.IDENTITY
    assert codecs.Scaled("randk:3") == codecs.Scaled(codecs.RandK(3))
    assert codecs.Chain("randk:3", "natural") == as_codec("randk:3+natural")
    assert codecs.RandK(np.int64(3)) == codecs.RandK(3)
    assert set(CODECS) == {as_codec(text).label for text in ALL}


@pytest.mark.parametrize(
    ("v", "keys", "says"),
    [
        (np.ones(4), Keys.draw(0, 0, np.arange(1)), "a row for each client, (n, d)"),
        ([[1.0]], Keys.draw(0, 0, np.arange(1)), "a row for each client, (n, d)"),
        (np.ones((2, 4)), None, "a key for each of the 2 rows"),
        (np.ones((2, 4)), Keys.draw(0, 0, np.arange(3)), "a key for each of the 2 rows"),
        (np.ones((2, 4), int), Keys.draw(0, 0, np.arange(2)), "codecs take float64 and float32"),
    ],
)
def test_vectors_and_keys_have_to_fit(v, keys, says):
    for act in (codecs.RandK(2).apply, codecs.RandK(2).encode):
        assert says in refusal(act, v, keys)
