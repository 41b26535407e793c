"""Mutants of codecs, with mistakes that were seen in public code."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_codecs.py"

BASE = [
    Edit("public: Flower's DASHA counts positions for vectors that are sent whole", "Identity.layout",
         "[Field(d, width_of(dtype))]", "[Field(d, width_of(dtype)), Field(d, 32)]"),
    Edit("codecs: padding may hold anything", "read_rows",
         "at % 8 and (rows[:, -1] >> at % 8).any()", "False"),
    Edit("codecs: a payload may have any length", "check_length", "len(payload) != length", "False"),
    Edit("codecs: rows start at the next bit, not the next byte", "row_bytes",
         "-(-row_bits(layout) // 8)", "row_bits(layout) // 8 + 1"),
    Edit("codecs: bits are those of the padded row", "Codec.bits",
         "row_bits(self.layout(d, dtype))", "8 * row_bytes(self.layout(d, dtype))"),
    Edit("codecs: alpha of any unbiased codec", "Codec.alpha",
         "omega is not None and omega < 1.0", "omega is not None"),
    Edit("codecs: the gain of float32 is rounded twice", "times",
         "np.asarray(v, np.float64) * gain", "v * v.dtype.type(gain)"),
    Edit("codecs: the second codec repeats the sparsifier's numbers", "Keys.below",
         "fold_each(self.own, np.uint64(word))", "self.own"),
    Edit("codecs: ranks of other rows", "Keys.at", "self.ranks[rows]", "self.ranks[: len(rows)]"),
]  # fmt: skip

CASTS = [
    Edit("casts: float16 with bfloat16's digits", "Cast.symbols",
         "self.digits", "min(self.digits, 7)"),
    Edit("casts: bfloat16 by way of float32", "Cast.symbols",
         "np.ascontiguousarray(v, np.float64)",
         "np.ascontiguousarray(v, np.float32).astype(np.float64)"),
]  # fmt: skip

QUANTISE = [
    Edit("public: MARINA's repository and fl-sim pack s+1 levels in ceil(log2 s) bits", "Dither.layout",
         "1 + self.s.bit_length()", "1 + (self.s - 1).bit_length()"),
    Edit("public: MARINA's repository and fl-sim leave omega of dithering at 0", "Dither.omega",
         "min(d / (4.0 * self.s ** 2), math.sqrt(d) / self.s)", "0.0"),
    Edit("Dither: omega without the quarter", "Dither.omega", "4.0 * self.s ** 2", "self.s ** 2"),
    Edit("Dither: omega without the root", "Dither.omega", "math.sqrt(d) / self.s", "math.inf"),
    Edit("Dither: the norm is free", "Dither.floats", "d + 1", "d"),
    Edit("Dither: levels are believed", "Dither.values",
         "(parts[1] >= np.uint64(2 * self.s + 2)).any()", "False"),
    Edit("Dither: norms are believed", "Dither.values", "(norm < 0.0).any()", "False"),
    Edit("Natural: omega of a deterministic rounding", "Natural.omega", "0.125", "1.0 / 9.0"),
    Edit("Natural: eleven bits", "Natural.layout",
         "12 if width_of(dtype) == 64 else 9", "11 if width_of(dtype) == 64 else 8"),
    Edit("ScaledSign: sign of zero is negative", "ScaledSign.transform", "v < 0.0", "v <= 0.0"),
    Edit("ScaledSign: alpha of a dense vector", "ScaledSign.alpha", "1.0 / d", "2.0 / math.pi"),
]  # fmt: skip

SPARSE = [
    Edit("codecs: a share of d is rounded down", "_KeepK.kept",
         "round(self.k * d)", "int(self.k * d)"),
    Edit("codecs: k may exceed d", "_KeepK.kept", "k > d", "False"),
    Edit("public: VR-ProxSkip draws RandK with replacement", "RandK.groups",
         "subsets(keys.own, d, k)", "subsets(keys.own, d * d, k) % np.uint32(d)"),
    Edit("public: fl-sim's TopK keeps the largest values, not the largest absolute values", "TopK.choose",
         "np.asarray(v, np.float64)", "np.maximum(np.asarray(v, np.float64), 0.0)"),
    Edit("public: FedNL, EF21-BW and DASHA do not count TopK's positions", "Sparsifier.bits",
         "self.index_layout(d) + second.layout(self.kept(d), dtype)",
         "second.layout(self.kept(d), dtype)"),
    Edit("public: MiniFL's alpha of PermK is n/d", "PermK.share",
         "1.0 / (d if self.n is None else self.n)", "(self.n or 1) / d"),
    Edit("RandK: the factor is missing", "RandK.gain", "d / self.kept(d)", "1.0"),
    Edit("RandK: omega is d/k", "RandK.omega", "d / self.kept(d) - 1.0", "d / self.kept(d)"),
    Edit("RandK: all clients have the same mask", "RandK.groups",
         "subsets(keys.own, d, k)", "subsets(np.full_like(keys.own, keys.shared), d, k)"),
    Edit("TopK: positions are believed", "TopK.read_positions",
         "(symbols >= d).any() or (symbols[:, 1:] <= symbols[:, :-1]).any()", "False"),
    Edit("TopK: a bitmap is believed", "TopK.read_positions",
         "(symbols.sum(axis=1) != group.kept).any()", "(symbols.sum(axis=1) < group.kept).any()"),
    Edit("TopK: a list although a bitmap is shorter", "TopK.sends_list",
         "self.kept(d) * _position_bits(d) <= d", "True"),
    Edit("TopK: positions in floor(log2 d) bits", "_position_bits",
         "(d - 1).bit_length()", "(d // 2).bit_length()"),
    Edit("PermK: the factor is missing", "PermK.gain", "float(keys.called)", "1.0"),
    Edit("PermK: omega of all clients", "PermK.omega",
         "(d if self.n is None else self.n) - 1.0", "0.0"),
    Edit("PermK: blocks by the rank in the chunk", "PermK.transform",
         "self._check_ranks(v.shape[1], keys)", "np.arange(len(v))"),
    Edit("Bernoulli: the factor is missing", "Bernoulli.gain", "1.0 / self.q", "1.0"),
    Edit("Bernoulli: the coin is inverted", "Bernoulli.groups",
         "kernels.coins(keys.own) < self.q", "kernels.coins(keys.own) >= self.q"),
    Edit("Bernoulli: silence is counted as a vector", "Bernoulli.has_fixed_size",
         "self.q == 1.0", "True"),
    Edit("sparsifiers: numbers of silent clients are counted", "Sparsifier._measure",
         "np.zeros(len(keys.own), np.int64)",
         "np.full(len(keys.own), measure(self.kept(d)))"),
]  # fmt: skip

COMPOSE = [
    Edit("Scaled: the codec's own factor", "Scaled.gain",
         "self.codec.gain_when_scaled(d)", "self.codec.gain(d, keys)"),
    Edit("Scaled: alpha is 1 - omega", "Scaled.alpha", "1.0 / (1.0 + omega)", "1.0 - omega"),
    Edit("Scaled: a biased codec", "Scaled.__post_init__", "not self.codec.is_unbiased", "False"),
    Edit("Chain: omegas add up", "Chain.omega",
         "(1.0 + first) * (1.0 + second) - 1.0", "first + second"),
    Edit("Chain: the second's omega is that of d numbers", "Chain.omega",
         "self.second.omega(self.sparsifier.kept(d))", "self.second.omega(d)"),
    Edit("Chain: TopK keeps its alpha", "Chain.alpha", "share * second", "share"),
    Edit("Chain: a factor before a biased codec", "Chain.gain", "self.is_unbiased", "True"),
]  # fmt: skip

KERNELS = [
    Edit("public: MARINA's repository has at most eleven levels of dithering", "dither",
         "np.floor(exact)", "min(np.floor(exact), 10.0)"),
    Edit("Dither: rounded to nearest", "dither", "u < exact - level", "0.5 < exact - level"),
    Edit("Dither: rounded down", "dither", "u < exact - level", "False"),
    Edit("Dither: the sign is lost", "dither", "x < 0.0", "x < -np.inf"),
    Edit("Dither: the norm overflows", "norms", "1e-280 < total < 1e300", "total < np.inf * 2"),
    Edit("Dither: the norm of half of the numbers", "norms", "total = a + b", "total = max(a, b)"),
    Edit("Dither: an infinite norm is not seen", "undither", "out[i, :] = np.nan",
         "out[i, :] = 0.0"),
    Edit("Natural: rounded down", "natural",
         "word_at(keys[i], j) >> np.uint64(64) - digits < mantissa", "False"),
    Edit("Natural: rounded up with half the probability", "natural",
         "np.uint64(64) - digits", "np.uint64(63) - digits"),
    Edit("Natural: one number for a whole vector", "natural", "word_at(keys[i], j)",
         "word_at(keys[i], 0)"),
    Edit("Natural: subnormals become the smallest number", "natural", "exponent > _0", "True"),
    Edit("Natural: infinite from the largest exponent on", "natural",
         "exponent < infinite - _1", "exponent < infinite"),
    Edit("TopK: of equal values the higher position", "largest",
         "(high == threshold) & (ties > 0)", "(high == threshold) & (d - j <= ties)"),
    Edit("TopK: NaN is the smallest", "largest",
         "min(size, np.uint64(9218868437227405313)) << _1",
         "(size if size <= np.uint64(9218868437227405312) else _0) << _1"),
    Edit("ScaledSign: the sum instead of the mean", "mean_sizes", "(a + b) / d", "a + b"),
    Edit("PermK: the first clients have the longer blocks", "partition",
         "shuffle(other, n)", "np.arange(n).astype(np.uint32)"),
    Edit("PermK: the same partition in every round", "partition",
         "shuffle(shared, d)", "np.arange(d).astype(np.uint32)"),
    Edit("casts: ties away from zero", "shorten",
         "size + half + (size >> cut & _1)", "size + half + _1"),
    Edit("casts: cut instead of rounded", "shorten",
         "size + half + (size >> cut & _1)", "size"),
    Edit("casts: the largest number instead of infinity", "shorten",
         "min(symbol, infinite)", "min(symbol, infinite - _1)"),
    Edit("casts: NaN becomes infinite", "shorten",
         "infinite | _1 << np.uint64(digits - 1)", "infinite - _1"),
]  # fmt: skip

RANDOM = [
    Edit("subsets: the same for every key", "subsets", "keys[i]", "keys[0]"),
]  # fmt: skip

TABLES = {
    "codecs/base.py": BASE,
    "codecs/casts.py": CASTS,
    "codecs/quantise.py": QUANTISE,
    "codecs/sparse.py": SPARSE,
    "codecs/compose.py": COMPOSE,
    "codecs/kernels.py": KERNELS,
    "core/random.py": RANDOM,
}
