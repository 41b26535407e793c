/* Sampled rounds of FedPAGE (Algorithm 1, lines 10-26) on robust linear regression, as plain C, and
   records of the loss and the gradient norm between them.

   benchmarks/c_loop.py compiles this file and compares fedpage's rounds with it. The arithmetic is
   that of fedpage's kernels: S clients, K local steps, all rows of a client in the first step and
   one row in each of the others, CSR rows whose entries are all 1, doubles, one thread. */

#include <math.h>
#include <stdint.h>

static uint64_t next_word(uint64_t *state) { /* SplitMix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint32_t below(uint64_t *state, uint32_t bound) { /* uniform in 0..bound-1 */
    return (uint32_t)(((next_word(state) >> 32) * bound) >> 32);
}

static double slope(double t, double b) { /* derivative of log(1 + (t - b)^2/2) */
    double r = t - b;
    return r / (1.0 + 0.5 * r * r);
}

/* Run one round with given clients (S,) and rows (S, K-1).
   x, x_prev, g (d,) are the server's state and are updated in place; scratch has 4 d doubles. */
void fedpage_round(const uint32_t *ptr, const uint32_t *idx, const double *target,
                   const int64_t *start, int64_t d, const int64_t *clients, int64_t S,
                   const uint32_t *rows, int64_t K, double eta_l, double eta_g,
                   double *restrict x, double *restrict x_prev, double *restrict g,
                   double *restrict scratch) {
    double *restrict y = scratch, *restrict y_prev = scratch + d;
    double *restrict v = scratch + 2 * d, *restrict total = scratch + 3 * d;
    for (int64_t l = 0; l < d; l++) total[l] = 0.0;
    for (int64_t i = 0; i < S; i++) {
        const int64_t first = start[clients[i]], size = start[clients[i] + 1] - first;
        for (int64_t l = 0; l < d; l++) {
            y[l] = x[l];
            y_prev[l] = x_prev[l];
            v[l] = g[l];
        }
        for (int64_t k = 0; k < K; k++) {
            const int64_t count = k == 0 ? size : 1;
            for (int64_t j = 0; j < count; j++) {
                const int64_t row = first + (k == 0 ? j : rows[i * (K - 1) + k - 1]);
                const uint32_t begin = ptr[row], end = ptr[row + 1];
                double now = 0.0, then = 0.0;
                for (uint32_t e = begin; e < end; e++) {
                    now += y[idx[e]];
                    then += y_prev[idx[e]];
                }
                const double change = (slope(now, target[row]) - slope(then, target[row])) / count;
                for (uint32_t e = begin; e < end; e++) v[idx[e]] += change;
            }
            for (int64_t l = 0; l < d; l++) { /* lines 16, 20 */
                total[l] += v[l];
                y_prev[l] = y[l];
                y[l] -= eta_l * v[l];
            }
        }
    }
    for (int64_t l = 0; l < d; l++) { /* lines 24, 26 */
        g[l] = total[l] / (double)(K * S);
        x_prev[l] = x[l];
        x[l] -= eta_g * g[l];
    }
}

/* Run rounds that draw S of N clients (Floyd's algorithm, ascending) and a row for each step. */
void fedpage_rounds(const uint32_t *ptr, const uint32_t *idx, const double *target,
                    const int64_t *start, int64_t d, int64_t N, int64_t S, int64_t K,
                    double eta_l, double eta_g, double *x, double *x_prev, double *g,
                    double *scratch, int64_t *clients, uint32_t *rows, int64_t rounds,
                    uint64_t seed) {
    for (int64_t r = 0; r < rounds; r++) {
        for (int64_t n = 0; n < S; n++) {
            int64_t pick = below(&seed, (uint32_t)(N - S + n + 1)), at = n;
            for (int64_t i = 0; i < n; i++)
                if (clients[i] == pick) pick = N - S + n;
            for (; at > 0 && clients[at - 1] > pick; at--) clients[at] = clients[at - 1];
            clients[at] = pick;
        }
        for (int64_t i = 0; i < S; i++) {
            const uint32_t size = (uint32_t)(start[clients[i] + 1] - start[clients[i]]);
            for (int64_t k = 0; k < K - 1; k++) rows[i * (K - 1) + k] = below(&seed, size);
        }
        fedpage_round(ptr, idx, target, start, d, clients, S, rows, K, eta_l, eta_g, x, x_prev, g,
                      scratch);
    }
}

/* Compute f(x), the mean of log(1 + (a.x - b)^2/2) over all rows of N equal clients, and
   |grad f(x)|. gradient has d doubles; record takes the two numbers. So many rows share a
   logarithm, log(1 + s) + log(1 + z) = log(1 + (s + z + s z)), as those of a client do in fedpage;
   1 takes one for every row. share must divide the number of rows. */
void fedpage_record(const uint32_t *ptr, const uint32_t *idx, const double *target, int64_t rows,
                    int64_t d, int64_t share, const double *restrict x,
                    double *restrict gradient, double *record) {
    double loss = 0.0, square = 0.0, product = 0.0;
    int64_t left = share;
    for (int64_t l = 0; l < d; l++) gradient[l] = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const uint32_t begin = ptr[row], end = ptr[row + 1];
        double t = 0.0;
        for (uint32_t e = begin; e < end; e++) t += x[idx[e]];
        const double r = t - target[row], v = slope(t, target[row]);
        const double s = 0.5 * r * r;
        product += s + product * s;
        if (--left == 0) {
            loss += log1p(product);
            product = 0.0;
            left = share;
        }
        for (uint32_t e = begin; e < end; e++) gradient[idx[e]] += v;
    }
    for (int64_t l = 0; l < d; l++) {
        const double g = gradient[l] / (double)rows;
        square += g * g;
    }
    record[0] = loss / (double)rows;
    record[1] = sqrt(square);
}

/* Run rounds with a record before the first and after every `every` of them; records has
   2 (rounds/every + 1) doubles. */
void fedpage_run(const uint32_t *ptr, const uint32_t *idx, const double *target,
                 const int64_t *start, int64_t d, int64_t N, int64_t S, int64_t K, double eta_l,
                 double eta_g, double *x, double *x_prev, double *g, double *scratch,
                 int64_t *clients, uint32_t *rows, int64_t rounds, uint64_t seed, int64_t every,
                 int64_t share, double *records) {
    for (int64_t done = 0;; done += every) {
        fedpage_record(ptr, idx, target, start[N], d, share, x, scratch, records);
        records += 2;
        if (done >= rounds) return;
        fedpage_rounds(ptr, idx, target, start, d, N, S, K, eta_l, eta_g, x, x_prev, g, scratch,
                       clients, rows, every, seed + (uint64_t)done);
    }
}
