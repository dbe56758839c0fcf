/* The annealing op's inner loops on CPUs: the row stage (see annealing_rows.py for the maths) and, for bfloat16, the two products that PyTorch has no
 * float32 result for. Plain C with OpenMP, vectorised by the compiler; built once per machine and loaded by ops/native/__init__.py.
 *
 * One row at a time: student and teacher logits of a row (V = 32000: 256 KB) and their exponentials stay in the second-level cache over all passes, every
 * exponential is taken once, and main memory sees each logit once. Sums run over blocks in float and over rows in double.
 *
 * OpenMP is the process's own (PyTorch's): this file is compiled with it and not linked to it, so that there is one pool of threads.
 */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#define BLOCK 512
#define INLINE static inline __attribute__((always_inline))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

typedef uint16_t bf16;

/* Multiplications and additions are fused only where this says so (-ffp-contract=off): q - p, fused with the product that q came from, would not be 0 for
 * q = p, and a student that has not moved has a divergence of exactly 0. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#endif

/* ------------------------------------------------------------------------------------------------------------ functions */

INLINE float power_of_two(float n) /* n integral, -126 <= n <= 127 */
{
    union { int32_t i; float f; } u;
    u.i = ((int32_t)n + 127) << 23;
    return u.f;
}

/* exp(x) for x <= 0; 0 below the smallest normal number; within 1.5 units in the last place (Cephes' polynomial). NaN stays NaN. */
INLINE float exp_negative(float x)
{
    float c = x < -87.3f ? -87.3f : x;
    float n = rintf(c * 1.44269504088896341f);
    float r = MADD(n, 2.12194440e-4f, MADD(n, -0.693359375f, c));
    float y = 1.9875691500e-4f;
    y = MADD(y, r, 1.3981999507e-3f);
    y = MADD(y, r, 8.3334519073e-3f);
    y = MADD(y, r, 4.1665795894e-2f);
    y = MADD(y, r, 1.6666665459e-1f);
    y = MADD(y, r, 5.0000001201e-1f);
    y = MADD(y, r * r, r) + 1.0f;
    y *= power_of_two(n);
    return x < -87.3f ? 0.0f : y;
}

/* exp(x) - 1 for x <= 0, accurate near 0. */
INLINE float expm1_negative(float x)
{
    float c = x < -87.3f ? -87.3f : x;
    float n = rintf(c * 1.44269504088896341f);
    float r = MADD(n, 2.12194440e-4f, MADD(n, -0.693359375f, c));
    float y = 1.9875691500e-4f;
    y = MADD(y, r, 1.3981999507e-3f);
    y = MADD(y, r, 8.3334519073e-3f);
    y = MADD(y, r, 4.1665795894e-2f);
    y = MADD(y, r, 1.6666665459e-1f);
    y = MADD(y, r, 5.0000001201e-1f);
    y = MADD(y, r * r, r);
    float scale = power_of_two(n);
    return MADD(y, scale, scale - 1.0f);
}

/* log(1 + y) for -1 < y <= 0, accurate near 0: log(u) y / (u - 1) with u = 1 + y as rounded. */
INLINE float log1p_negative(float y)
{
    float u = 1.0f + y;
    union { float f; int32_t i; } bits;
    bits.f = u;
    int32_t exponent = ((bits.i - 0x3f3504f3) >> 23); /* mantissa into sqrt(1/2)..sqrt(2) */
    bits.i -= exponent << 23;
    float f = bits.f - 1.0f, e = (float)exponent;
    float p = 7.0376836292e-2f;
    p = MADD(p, f, -1.1514610310e-1f);
    p = MADD(p, f, 1.1676998740e-1f);
    p = MADD(p, f, -1.2420140846e-1f);
    p = MADD(p, f, 1.4249322787e-1f);
    p = MADD(p, f, -1.6668057665e-1f);
    p = MADD(p, f, 2.0000714765e-1f);
    p = MADD(p, f, -2.4999993993e-1f);
    p = MADD(p, f, 3.3333331174e-1f);
    float z = f * f;
    float log_u = MADD(e, 0.693359375f, MADD(e, -2.12194440e-4f, MADD(f * z, p, MADD(-0.5f, z, f))));
    float below = u - 1.0f;
    return below == 0.0f ? y : log_u * (y / below);
}

INLINE float largest(const float *x, int64_t n)
{
    float m = -INFINITY;
#pragma omp simd reduction(max : m)
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* e_i = exp((x_i - m) / T), their sum, and sum e_i (x_i - m) / T; not finite where an x is not. Never inlined, so that student and teacher go through the
 * very same instructions and equal logits give equal bits. */
static __attribute__((noinline)) void exponentials(const float *x, int64_t n, float m, float inverse, float *restrict e, double *sum, double *weighted)
{
    double s = 0, t = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = LEAST(start + BLOCK, n);
        float a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
        for (int64_t i = start; i < end; i++) {
            float v = (x[i] - m) * inverse;
            float y = exp_negative(v);
            e[i] = y;
            a += y;
            b = MADD(y, v, b);
        }
        s += a;
        t += b;
    }
    *sum = s;
    *weighted = t;
}

/* The same without the column `skip`, whose e becomes 0, and the largest of the others; -1: of all columns. */
static void exponentials_without(const float *x, int64_t n, int64_t skip, float inverse, float *e, float *m, double *sum, double *weighted)
{
    if (skip < 0) {
        *m = largest(x, n);
        exponentials(x, n, *m, inverse, e, sum, weighted);
        return;
    }
    const int64_t after = skip + 1;
    const float below = largest(x, skip), above = largest(x + after, n - after);
    double s, t;
    *m = below > above ? below : above;
    exponentials(x, skip, *m, inverse, e, sum, weighted);
    exponentials(x + after, n - after, *m, inverse, e + after, &s, &t);
    *sum += s;
    *weighted += t;
    e[skip] = 0.0f;
}

INLINE void store_bf16(const float *x, int64_t n, bf16 *restrict out)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        union { float f; uint32_t u; } bits;
        bits.f = x[i];
        out[i] = (bf16)((bits.u + 0x7fffu + ((bits.u >> 16) & 1u)) >> 16); /* to nearest, ties to even */
    }
}

/* ------------------------------------------------------------------------------------------------------------ row stage */

enum { FORWARD = 0, REVERSE = 1, JSD = 2 };
enum { NO_GRADIENT = 0, FLOAT32 = 1, BFLOAT16 = 2 };
enum { NO_GATE = 0, PROBABILITY = 1, ENTROPY = 2 };
#define LARGEST 20       /* logits that the gate of entropy looks at */
#define MOST_ENTROPY 3.0 /* nats that it divides by */

typedef struct {
    int64_t vocabulary, teacher_vocabulary; /* 0: no teacher */
    double scale, cap;                      /* factor of the gradient; soft-cap, 0: none */
    double temperature, beta;
    double ce, kl;
    double gate_power, floor, gate_strength;
    int64_t direction, kind, gate, mask_target;
} terms;

/* The entropy, in nats, of the softmax over the 20 largest logits alone. Most blocks hold none of them and are passed over after their largest was taken. */
static double largest_entropy(const float *z, int64_t n)
{
    float best[LARGEST];
    const int64_t kept = LEAST(LARGEST, n);
    int64_t held = 0, lowest = 0;
    for (int64_t start = 0; start < n; start += 128) {
        const int64_t end = LEAST(start + 128, n);
        if (held == kept && !(largest(z + start, end - start) > best[lowest]))
            continue;
        for (int64_t i = start; i < end; i++) {
            if (held < kept)
                best[held++] = z[i];
            else if (z[i] > best[lowest])
                best[lowest] = z[i];
            else
                continue;
            if (held == kept) {
                lowest = 0;
                for (int64_t k = 1; k < kept; k++)
                    lowest = best[k] < best[lowest] ? k : lowest;
            }
        }
    }
    const double top = largest(best, kept);
    double sum = 0, weighted = 0;
    for (int64_t k = 0; k < kept; k++) {
        const double y = exp(best[k] - top);
        sum += y;
        weighted += y * (best[k] - top);
    }
    const double entropy = log(sum) - weighted / sum;
    return entropy > 0 ? entropy : 0;
}

/* gate^power, not below the floor, as far as its strength goes. */
static double gated(const terms *t, const float *z, double ce)
{
    if (t->gate == NO_GATE)
        return 1;
    const double gate = t->gate == PROBABILITY ? exp(-t->gate_power * ce) : pow(largest_entropy(z, t->vocabulary) / MOST_ENTROPY, t->gate_power);
    return 1 - t->gate_strength + t->gate_strength * (gate < t->floor ? t->floor : gate);
}

/* One row. `z`, `w`: logits as the softmax sees them; `given`: its weight; `kl`: its factor of the divergence; `e`, `et`, `p`: scratch; `out`: the gradient row in
 * float, may be `z`. */
static void one_row(const terms *t, const float *z, float *w, int64_t label, int on, double given, double kl, float *e, float *et, float *restrict p, float *out, float *figures)
{
    const int64_t V = t->vocabulary, U = t->teacher_vocabulary, common = LEAST(V, U);
    const int labelled = label >= 0;
    const float inverse = (float)(1.0 / t->temperature);
    double sum, weighted;
    const float top = largest(z, V);
    exponentials(z, V, top, 1.0f, e, &sum, &weighted);
    const float zy = labelled ? z[label] : 0.0f;
    figures[0] = labelled ? (float)(log(sum) + ((double)top - zy)) : 0.0f;
    figures[1] = 0.0f;
    figures[2] = (float)(log(sum) - weighted / sum);
    figures[3] = labelled && zy >= top;
    figures[4] = !(isfinite(weighted) && isfinite(top));
    figures[5] = 0.0f;
    /* a weight of 1 leaves every bit */
    const double weight = labelled ? given * gated(t, z, figures[0]) : 0, ce = t->ce * weight;
    figures[6] = (float)weight;

    const float a = labelled ? (float)(ce * t->scale / sum) : 0.0f; /* gradient of the cross-entropy: a e_i */
    const float b = on ? (float)(kl * t->scale * inverse) : 0.0f;
    const int wanted = t->kind != NO_GRADIENT;
    const int64_t begin = U ? common : 0; /* columns from here on have cross-entropy only */

    if (U) {
        /* The KL's own softmax where it is not the cross-entropy's. A masked label has a q and a p of 0, and so no part in the sums below. */
        const int64_t skip = t->mask_target && labelled && label < common && common > 1 ? label : -1;
        float mt = top, mw;
        double st = sum, unused, teacher_sum, teacher_weighted;
        if (t->temperature != 1.0 || common != V || skip >= 0)
            exponentials_without(z, common, skip, inverse, et, &mt, &st, &unused);
        else
            et = e;
        exponentials_without(w, common, skip, inverse, p, &mw, &teacher_sum, &teacher_weighted);
        float rest = skip >= 0 ? w[skip] * 0.0f : 0;
        for (int64_t i = common; i < U; i++)
            rest += w[i] * 0.0f;
        figures[5] = !(isfinite(teacher_weighted) && isfinite(mw) && isfinite(rest));

        const float rq = (float)(1.0 / st), rp = (float)(1.0 / teacher_sum);
        /* From the reciprocals as rounded: then an error in one of them moves q (or p) and d together, and cancels in the sums below. */
        const float shift = (float)(((double)mw - mt) / t->temperature + log((double)rq / rp));
        double divergence = 0;
        if (t->direction == FORWARD) {
            for (int64_t start = 0; start < common; start += BLOCK) {
                int64_t end = LEAST(start + BLOCK, common);
                float k = 0;
                if (wanted) {
#pragma omp simd reduction(+ : k)
                    for (int64_t i = start; i < end; i++) {
                        float q = et[i] * rq, r = p[i] * rp, d = (w[i] - z[i]) * inverse - shift;
                        k += MADD(r, d, q - r);
                        out[i] = MADD(a, e[i], b * (q - r));
                    }
                } else {
#pragma omp simd reduction(+ : k)
                    for (int64_t i = start; i < end; i++) {
                        float q = et[i] * rq, r = p[i] * rp, d = (w[i] - z[i]) * inverse - shift;
                        k += MADD(r, d, q - r);
                    }
                }
                divergence += k;
            }
        } else if (t->direction == REVERSE) {
            for (int64_t start = 0; start < common; start += BLOCK) {
                int64_t end = LEAST(start + BLOCK, common);
                float k = 0;
#pragma omp simd reduction(+ : k)
                for (int64_t i = start; i < end; i++) {
                    float q = et[i] * rq, r = p[i] * rp, d = (w[i] - z[i]) * inverse - shift;
                    w[i] = d;
                    k += MADD(-q, d, r - q);
                }
                divergence += k;
            }
            const float mean = (float)divergence;
            if (wanted) {
#pragma omp simd
                for (int64_t i = 0; i < common; i++)
                    out[i] = MADD(a, e[i], -b * (et[i] * rq) * (w[i] + mean));
            }
        } else {
            const float beta = (float)t->beta, other = (float)(1.0 - t->beta);
            double mean = 0;
            for (int64_t start = 0; start < common; start += BLOCK) {
                int64_t end = LEAST(start + BLOCK, common);
                float k = 0, s = 0;
#pragma omp simd reduction(+ : k, s)
                for (int64_t i = start; i < end; i++) {
                    float q = et[i] * rq, r = p[i] * rp, d = (w[i] - z[i]) * inverse - shift;
                    float share = d > 0 ? other : beta, above = d > 0 ? d : 0.0f;
                    float rest = log1p_negative(share * expm1_negative(d > 0 ? -d : d)), l = above + rest;
                    w[i] = l;
                    k += beta * r * ((d - above) - rest) - other * q * l; /* not d - l: both may be large */
                    s += q * l;
                }
                divergence += k;
                mean += s;
            }
            const float m = (float)mean, c = b * other;
            if (wanted) {
#pragma omp simd
                for (int64_t i = 0; i < common; i++)
                    out[i] = MADD(a, e[i], c * (et[i] * rq) * (m - w[i]));
            }
        }
        figures[1] = on || !(fabs(divergence) < 1e-9 * 3.4028235e38) ? (float)divergence : 0.0f; /* see `bounded` */
    }
    if (!wanted)
        return;
#pragma omp simd
    for (int64_t i = begin; i < V; i++)
        out[i] = a * e[i];
    if (labelled)
        out[label] -= (float)(ce * t->scale);
}

/* The row stage of annealing_rows.py for float32 logits. `figures` is [rows, 7]. 0, or 1 without memory for the scratch rows. */
int holdfast_rows(int64_t rows, float *z, int64_t ldz, float *w, int64_t ldw, const int64_t *labels, const uint8_t *on, const float *ce_weights,
                  const float *kl_weights, const terms *t, void *gradient, int64_t ldg, float *figures, int64_t ldf)
{
    const int64_t V = t->vocabulary, width = (V + 15) / 16 * 16 + 16;
    int failed = 0;
#pragma omp parallel
    {
        float *scratch = aligned_alloc(64, 4 * width * sizeof(float));
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t r = 0; r < rows; r++) {
            if (!scratch)
                continue;
            float *out = t->kind == FLOAT32 ? (float *)gradient + r * ldg : scratch + 3 * width;
            /* The soft-cap's slope is taken from the logits, which the gradient may overwrite: the row's own copy is made first. */
            float *zr = z + r * ldz, *logits = zr;
            if (t->cap != 0 && t->kind == FLOAT32) {
                logits = scratch + 3 * width;
                memcpy(logits, zr, V * sizeof(float));
            }
            const double given = ce_weights ? ce_weights[r] : 1.0, kl = t->kl * (kl_weights ? kl_weights[r] : 1.0);
            one_row(t, logits, w ? w + r * ldw : NULL, labels[r], on ? on[r] : 0, given, kl, scratch, scratch + width, scratch + 2 * width, out,
                    figures + r * ldf);
            if (t->cap != 0 && t->kind != NO_GRADIENT) {
                const float c = (float)(1.0 / t->cap);
#pragma omp simd
                for (int64_t i = 0; i < V; i++)
                    out[i] *= 1.0f - (logits[i] * c) * (logits[i] * c);
            }
            if (t->kind == BFLOAT16) {
                bf16 *row = (bf16 *)gradient + r * ldg;
                store_bf16(out, V, row);
                if (V % 2 && ldg > V) /* products read pairs */
                    row[V] = 0;
            }
        }
        free(scratch);
    }
    return failed;
}

/* ------------------------------------------------------------------------------------- bfloat16 products, float32 results */

/* PyTorch's own small product (at::native::cpublas::brgemm, oneDNN inside): C [M, N] (+)= A [M, K] B, B in pairs of rows interleaved. */
typedef void (*product)(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, _Bool add, const void *A, const void *B, float *C, _Bool pairs);
typedef void (*release)(_Bool pairs);

#define COLUMNS 64 /* of the logits, a block */
#define SLAB 512   /* of the vocabulary, a pass of the hidden states' gradient */
#define BAND 256   /* rows of the same */
#define TILE 128   /* rows of the weight gradient, a block: its 128 x H sums are read and written once a chunk */

/* W [V, H] into blocks of 64 rows, each [H / 2, 64] pairs; rows beyond V are 0. `packed` holds ceil(V / 64) * 64 * H values. H is even. */
void holdfast_pack(int64_t V, int64_t H, const bf16 *weight, int64_t ld, bf16 *packed)
{
    const int64_t blocks = (V + COLUMNS - 1) / COLUMNS, pairs = H / 2;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t j = 0; j < blocks; j++) {
        uint32_t *to = (uint32_t *)(packed + j * COLUMNS * H);
        for (int64_t k0 = 0; k0 < pairs; k0 += 16)
            for (int64_t n = 0; n < COLUMNS; n++) {
                const int64_t row = j * COLUMNS + n;
                const int64_t k1 = LEAST(k0 + 16, pairs);
                if (row >= V) {
                    for (int64_t k = k0; k < k1; k++)
                        to[k * COLUMNS + n] = 0;
                    continue;
                }
                const bf16 *from = weight + row * ld;
                for (int64_t k = k0; k < k1; k++) {
                    uint32_t pair;
                    memcpy(&pair, from + 2 * k, 4);
                    to[k * COLUMNS + n] = pair;
                }
            }
    }
}

/* z [rows, V] = hidden [rows, H] W^T, float32. */
void holdfast_logits(product multiply, release done, int64_t rows, int64_t V, int64_t H, const bf16 *hidden, int64_t ldh, const bf16 *packed, float *z,
                     int64_t ldz)
{
    const int64_t blocks = (V + COLUMNS - 1) / COLUMNS;
#pragma omp parallel
    {
#pragma omp for schedule(dynamic, 4)
        for (int64_t j = 0; j < blocks; j++) {
            const int64_t n = LEAST(COLUMNS, V - j * COLUMNS);
            multiply(rows, n, H, ldh, COLUMNS, ldz, 0, hidden, packed + j * COLUMNS * H, z + j * COLUMNS, 1);
        }
        done(1);
    }
}

typedef bf16 eight __attribute__((vector_size(16)));

/* to [8, 8] = from [8, 8] transposed. */
INLINE void transpose_8x8(const bf16 *from, int64_t ldf, bf16 *to, int64_t ldt)
{
    const eight low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
    eight a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], from + i * ldf, 16);
    for (int i = 0; i < 4; i++) { /* interleaving rows i and i + 4 three times over transposes */
        b[2 * i] = __builtin_shuffle(a[i], a[i + 4], low);
        b[2 * i + 1] = __builtin_shuffle(a[i], a[i + 4], high);
    }
    for (int i = 0; i < 4; i++) {
        a[2 * i] = __builtin_shuffle(b[i], b[i + 4], low);
        a[2 * i + 1] = __builtin_shuffle(b[i], b[i + 4], high);
    }
    for (int i = 0; i < 4; i++) {
        b[2 * i] = __builtin_shuffle(a[i], a[i + 4], low);
        b[2 * i + 1] = __builtin_shuffle(a[i], a[i + 4], high);
    }
    for (int i = 0; i < 8; i++)
        memcpy(to + i * ldt, &b[i], 16);
}

/* to [ceil(rows / 2), columns, 2] = from [rows, columns], pairs of rows interleaved, an odd last row paired with 0. */
INLINE void interleave(int64_t rows, int64_t columns, const bf16 *from, int64_t ld, bf16 *restrict to)
{
    for (int64_t r = 0; r + 1 < rows; r += 2) {
        const bf16 *first = from + r * ld, *second = first + ld;
#pragma omp simd
        for (int64_t c = 0; c < columns; c++) {
            to[r * columns + 2 * c] = first[c];
            to[r * columns + 2 * c + 1] = second[c];
        }
    }
    if (rows % 2)
        for (int64_t c = 0; c < columns; c++) {
            to[(rows - 1) * columns + 2 * c] = from[(rows - 1) * ld + c];
            to[(rows - 1) * columns + 2 * c + 1] = 0;
        }
}

/* W [V, H] for the product with the gradient: slabs of 512 rows, each in blocks of 64 columns with pairs of rows interleaved. `packed` holds V + 1 rows. */
void holdfast_pack_pairs(int64_t V, int64_t H, const bf16 *weight, int64_t ld, bf16 *packed)
{
    const int64_t slabs = (V + SLAB - 1) / SLAB;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t k = 0; k < slabs; k++) {
        const int64_t depth = LEAST(SLAB, V - k * SLAB), even = (depth + 1) / 2 * 2;
        for (int64_t h = 0; h < H; h += COLUMNS)
            interleave(depth, LEAST(COLUMNS, H - h), weight + k * SLAB * ld + h, ld, packed + k * SLAB * H + h * even);
    }
}

/* dh [rows, H] = G [rows, V] W, float32. Where V is odd, each row of G is followed by a 0. */
void holdfast_hidden_gradient(product multiply, release done, int64_t rows, int64_t V, int64_t H, const bf16 *G, int64_t ldg, const bf16 *packed, float *dh,
                             int64_t ldo)
{
    const int64_t bands = (rows + BAND - 1) / BAND, slabs = (V + SLAB - 1) / SLAB, blocks = (H + COLUMNS - 1) / COLUMNS;
    const int64_t groups = LEAST(blocks, (omp_get_max_threads() + bands - 1) / bands), size = (blocks + groups - 1) / groups;
#pragma omp parallel
    {
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t band = 0; band < bands; band++)
            for (int64_t group = 0; group < groups; group++) {
                const int64_t m = LEAST(BAND, rows - band * BAND), last = LEAST(blocks, (group + 1) * size);
                for (int64_t k = 0; k < slabs; k++) {
                    const int64_t depth = LEAST(SLAB, V - k * SLAB), even = (depth + 1) / 2 * 2;
                    for (int64_t b = group * size; b < last; b++) {
                        const int64_t n = LEAST(COLUMNS, H - b * COLUMNS);
                        multiply(m, n, even, ldg, n, ldo, k > 0, G + band * BAND * ldg + k * SLAB, packed + k * SLAB * H + b * COLUMNS * even,
                                 dh + band * BAND * ldo + b * COLUMNS, 1);
                    }
                }
            }
        done(1);
    }
}

/* dW [V, H] (+)= G^T hidden, float32; G [rows, V], hidden [rows, H]. 0, or 1 without memory for the copies.
 *
 * The hidden states are laid out in blocks of 64 columns, pairs of rows interleaved, an odd last row paired with 0: 64 KB at 512 rows, which stays in the
 * first caches while a tile of G, transposed, goes by. The tile's next sums are fetched from memory meanwhile. */
int holdfast_weight_gradient(product multiply, release done, int64_t rows, int64_t V, int64_t H, const bf16 *G, int64_t ldg, const bf16 *hidden, int64_t ldh,
                             float *dW, int add)
{
    const int64_t tiles = (V + TILE - 1) / TILE, even = (rows + 1) / 2 * 2, blocks = (H + COLUMNS - 1) / COLUMNS;
    bf16 *pairs = aligned_alloc(64, blocks * COLUMNS * even * sizeof(bf16) + 64);
    int failed = !pairs;
    if (failed)
        return 1;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++)
            interleave(rows, LEAST(COLUMNS, H - b * COLUMNS), hidden + b * COLUMNS, ldh, pairs + b * COLUMNS * even);
        bf16 *tile = aligned_alloc(64, ((TILE * even * sizeof(bf16) + 63) / 64) * 64);
        if (!tile) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t j = 0; j < tiles; j++) {
            if (!tile)
                continue;
            const int64_t n = LEAST(TILE, V - j * TILE);
            const bf16 *from = G + j * TILE;
            const int64_t whole_rows = rows / 8 * 8, whole_columns = n / 8 * 8;
            for (int64_t r = 0; r < whole_rows; r += 8)
                for (int64_t c = 0; c < whole_columns; c += 8)
                    transpose_8x8(from + r * ldg + c, ldg, tile + c * even + r, even);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = r < whole_rows ? whole_columns : 0; c < n; c++)
                    tile[c * even + r] = from[r * ldg + c];
            if (even != rows)
                for (int64_t c = 0; c < n; c++)
                    tile[c * even + rows] = 0;
            for (int64_t b = 0; b < blocks; b++) {
                const int64_t width = LEAST(COLUMNS, H - b * COLUMNS);
                float *sums = dW + j * TILE * H + b * COLUMNS;
                if (add && b + 1 < blocks)
                    for (int64_t m = 0; m < n; m++)
                        for (int64_t c = COLUMNS; c < 2 * COLUMNS; c += 16)
                            __builtin_prefetch(sums + m * H + c, 1, 2);
                multiply(n, width, even, even, width, H, add != 0, tile, pairs + b * COLUMNS * even, sums, 1);
            }
        }
        done(1);
        free(tile);
    }
    free(pairs);
    return failed;
}

/* ---------------------------------------------------------------------------------------------------------------- memory */

/* Asks for large pages under a buffer that has not been touched yet: page faults of a 64 MB buffer fall from 16,000 to 32, and the strided walks through it
 * miss the address cache less. Advice only. */
void holdfast_large_pages(void *start, int64_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, begin = ((uintptr_t)start + page - 1) / page * page, end = ((uintptr_t)start + bytes) / page * page;
    if (end > begin)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}
