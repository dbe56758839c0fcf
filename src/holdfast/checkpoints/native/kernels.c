/* The checkpoint engine's elementwise passes over stored floats (see kernels.py for what each computes): decode a few thousand bytes into the
 * first-level cache, compute in float, round once, store. Plain C, vectorised by the compiler, one thread; built once per machine and loaded by
 * native/__init__.py.
 *
 * The results are those of kernels_torch.py bit for bit: nothing is reassociated, no product is fused with a sum (-ffp-contract=off), every NaN is
 * stored as the one quiet NaN of its type. of float64 operands only sums are handled here; PyTorch does the rest.
 *
 * Whether operands hold NaN or infinities shows in the result, whose largest magnitude a pass sees anyway; only blocks where it is not finite are
 * looked at closely.
 */

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define BLOCK 1024
#define INLINE static inline __attribute__((always_inline))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define SIGN 0x80000000u
#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u

enum { NONE = -1, F32 = 0, BF16 = 1, F16 = 2, F8_E4M3 = 3, F8_E5M2 = 4, F64 = 5 };

typedef struct {
    void *data;
    int64_t type;
} operand;

/* Vectors of GNU C, where the compiler does not find them by itself; any machine has them, in registers or out of them. */
typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));
typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef double v4d __attribute__((vector_size(32)));

static const int64_t SIZE[] = {4, 2, 2, 1, 1, 8};
/* The smallest magnitude, as bits of a float, that rounds to something infinite or NaN. */
static const uint32_t LIMIT[] = {INFINITE, 0x7F7F8000u, 0x477FF000u, 0x43E80001u, 0x47700000u};
static const uint32_t STORED_NAN[] = {0x7FC00000u, 0x7FC0u, 0x7E00u, 0x7Fu, 0x7Fu};

INLINE float as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

INLINE uint32_t as_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

INLINE const char *at(const operand *o, int64_t i)
{
    return (const char *)o->data + i * SIZE[o->type];
}

static int overlap(const operand *a, const operand *b, int64_t n)
{
    return a->type != NONE && (uintptr_t)at(a, 0) < (uintptr_t)at(b, n) && (uintptr_t)at(b, 0) < (uintptr_t)at(a, n);
}

/* ----------------------------------------------------------------------------------------------------------- conversion */

INLINE float half_to_float(uint32_t h)
{
    uint32_t m = h & 0x7FFF;
    uint32_t f = as_bits(as_float(m << 13) * 0x1p112f); /* exact, subnormal numbers too */
    f = m >= 0x7C00 ? m << 13 | INFINITE : f;
    return as_float(f | (h & 0x8000) << 16);
}

INLINE uint32_t narrow(uint32_t bits, int exponent, int mantissa, uint32_t first_nonfinite, int sign_at)
{
    const int bias = (1 << (exponent - 1)) - 1, shift = 23 - mantissa;
    const uint32_t smallest_normal = (uint32_t)(127 - bias + 1) << 23, beyond = (uint32_t)(127 + (1 << exponent) - bias) << 23;
    const uint32_t unit = (uint32_t)(127 + 23 + 1 - bias - mantissa) << 23;
    uint32_t m = LEAST(bits & MAGNITUDE, beyond);
    uint32_t rounded = ((m + ((1u << (shift - 1)) - 1) + (m >> shift & 1)) >> shift) - ((uint32_t)(127 - bias) << mantissa);
    uint32_t subnormal = as_bits(as_float(m) + as_float(unit)) - unit; /* the unit in the last place no longer shrinks: adding rounds there */
    uint32_t result = m < smallest_normal ? subnormal : rounded;
    return LEAST(result, first_nonfinite) | (bits >> 31) << sign_at;
}

static __attribute__((noinline)) void decode_halves(const uint16_t *restrict raw, int64_t n, float *restrict out)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; n - i >= 8; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(raw + i))));
#endif
    for (; i < n; i++)
        out[i] = half_to_float(raw[i]);
}

static void decode(const operand *o, int64_t start, int64_t n, float *restrict out)
{
    const char *raw = at(o, start);
    if (o->type == F32) {
        memcpy(out, raw, 4 * n);
    } else if (o->type == BF16) {
        const uint16_t *restrict p = (const uint16_t *)raw;
        for (int64_t i = 0; i < n; i++)
            out[i] = as_float((uint32_t)p[i] << 16);
    } else if (o->type == F16) {
        decode_halves((const uint16_t *)raw, n, out);
    } else {
        /* Both 8-bit types are halves with fewer bits: E5M2 the upper byte, E4M3 one with another bias. */
        const uint8_t *restrict p = (const uint8_t *)raw;
        uint16_t halves[BLOCK];
        for (int64_t done = 0; done < n; done += BLOCK) {
            int64_t k = LEAST(BLOCK, n - done);
            if (o->type == F8_E5M2) {
                for (int64_t i = 0; i < k; i++)
                    halves[i] = (uint16_t)(p[done + i] << 8);
                decode_halves(halves, k, out + done);
            } else {
                for (int64_t i = 0; i < k; i++) {
                    uint16_t m = p[done + i] & 0x7F;
                    halves[i] = (uint16_t)((p[done + i] & 0x80) << 8 | (m == 0x7F ? 0x7E00 : m << 7));
                }
                decode_halves(halves, k, out + done);
                for (int64_t i = 0; i < k; i++)
                    out[done + i] *= 256.0f;
            }
        }
    }
}

/* A stretch as floats: where it lies, or decoded into `buffer`. */
static const float *floats(const operand *o, int64_t start, int64_t n, float *buffer)
{
    if (o->type == F32)
        return (const float *)at(o, start);
    decode(o, start, n, buffer);
    return buffer;
}

INLINE uint32_t to_bfloat16(uint32_t u)
{
    return (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

static uint32_t largest(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t m = as_bits(x[i]) & MAGNITUDE;
        most = m > most ? m : most;
    }
    return most;
}

static void store_finite(const float *restrict x, int64_t n, int64_t type, char *restrict raw)
{
    if (type == F32) {
        memcpy(raw, x, 4 * n);
    } else if (type == BF16) {
        uint16_t *p = (uint16_t *)raw;
        for (int64_t i = 0; i < n; i++)
            p[i] = (uint16_t)to_bfloat16(as_bits(x[i]));
    } else if (type == F16) {
        uint16_t *p = (uint16_t *)raw;
        int64_t i = 0;
#ifdef __F16C__
        for (; n - i >= 8; i += 8)
            _mm_storeu_si128((__m128i *)(p + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
        for (; i < n; i++)
            p[i] = (uint16_t)narrow(as_bits(x[i]), 5, 10, 0x7C00, 15);
    } else {
        uint8_t *p = (uint8_t *)raw;
        if (type == F8_E4M3) {
            for (int64_t i = 0; i < n; i++)
                p[i] = (uint8_t)narrow(as_bits(x[i]), 4, 3, 0x7F, 7);
        } else {
            for (int64_t i = 0; i < n; i++)
                p[i] = (uint8_t)narrow(as_bits(x[i]), 5, 2, 0x7C, 7);
        }
    }
}

static void store_nan(const float *x, int64_t n, int64_t type, char *raw)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != x[i])
            memcpy(raw + i * SIZE[type], &STORED_NAN[type], SIZE[type]); /* little-endian, as safetensors is */
}

/* Stores a block, whose largest magnitude is `most`; gives how many of the numbers are not finite, and adds to `lost` how many cease to be. */
static int64_t encode(const float *x, int64_t n, const operand *out, int64_t start, uint32_t most, int64_t *lost)
{
    char *raw = (char *)at(out, start);
    uint32_t limit = LIMIT[out->type];
    store_finite(x, n, out->type, raw);
    if (most < limit)
        return 0;
    int64_t unusual = 0, beyond = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t m = as_bits(x[i]) & MAGNITUDE;
        unusual += m >= INFINITE;
        beyond += m >= limit;
    }
    store_nan(x, n, out->type, raw);
    *lost += beyond - unusual;
    return unusual;
}

static int64_t count_nonfinite(const operand *o, int64_t start, int64_t n)
{
    const char *raw = at(o, start);
    int64_t count = 0;
    for (int64_t done = 0; done < n; done += BLOCK) {
        int64_t k = LEAST(BLOCK, n - done);
        uint32_t most = 0;
        if (o->type == F32) {
            most = largest((const float *)raw + done, k);
            if (most >= INFINITE)
                for (int64_t i = 0; i < k; i++)
                    count += (as_bits(((const float *)raw)[done + i]) & MAGNITUDE) >= INFINITE;
        } else if (SIZE[o->type] == 2) {
            const uint16_t *p = (const uint16_t *)raw + done, first = o->type == BF16 ? 0x7F80 : 0x7C00;
            uint16_t m = 0;
            for (int64_t i = 0; i < k; i++) {
                uint16_t x = p[i] & 0x7FFF;
                m = x > m ? x : m;
            }
            if (m >= first)
                for (int64_t i = 0; i < k; i++)
                    count += (p[i] & 0x7FFF) >= first;
        } else {
            const uint8_t *p = (const uint8_t *)raw + done, first = o->type == F8_E4M3 ? 0x7F : 0x7C;
            for (int64_t i = 0; i < k; i++)
                count += (p[i] & 0x7F) >= first;
        }
    }
    return count;
}

/* The bits of those operands that hold NaN or infinities in a stretch. */
static int64_t nonfinite_mask(const operand *operands, int64_t number, int64_t start, int64_t n)
{
    int64_t mask = 0;
    for (int64_t j = 0; j < number; j++)
        if (operands[j].type != NONE && count_nonfinite(operands + j, start, n))
            mask |= (int64_t)1 << j;
    return mask;
}

int64_t holdfast_count_nonfinite(int64_t n, const operand *o)
{
    return count_nonfinite(o, 0, n);
}

void holdfast_decode(int64_t n, const operand *o, float *out)
{
    decode(o, 0, n, out);
}

int64_t holdfast_encode(int64_t n, const float *x, const operand *out)
{
    int64_t lost = 0;
    const operand values = {(void *)x, F32};
    int aside = overlap(&values, out, n);
    float block[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t k = LEAST(BLOCK, n - start);
        const float *p = aside ? memcpy(block, x + start, 4 * k) : x + start;
        encode(p, k, out, start, largest(p, k), &lost);
    }
    return lost;
}

/* -------------------------------------------------------------------------------------------------------------- combine */

/* Two bfloat16 numbers in one word, without moving bits between lanes. */
INLINE float lower(uint32_t pair)
{
    return as_float(pair << 16);
}

INLINE float upper(uint32_t pair)
{
    return as_float(pair & 0xFFFF0000u);
}

INLINE uint32_t load_pair(const char *raw, int64_t i)
{
    uint32_t u;
    memcpy(&u, raw + 4 * i, 4);
    return u;
}

/* A whole block of bfloat16 results; gives 0 where all are finite. */
INLINE uint32_t combine_pairs(const char *anchor, int terms, const char *const *plus, const char *const *minus, const float *weights,
                              char *restrict out)
{
    const char *p0 = plus[0], *p1 = plus[1], *p2 = plus[2], *m0 = minus[0], *m1 = minus[1], *m2 = minus[2];
    const float w0 = weights[0], w1 = weights[1], w2 = weights[2];
    uint32_t seen = 0;
#define PRODUCT(half, j) (w##j * (m##j ? half(load_pair(p##j, i)) - half(load_pair(m##j, i)) : half(load_pair(p##j, i))))
#define SUM(half, x)                                                                                                                               \
    x = anchor ? half(load_pair(anchor, i)) + PRODUCT(half, 0) : PRODUCT(half, 0);                                                                 \
    if (terms > 1)                                                                                                                                 \
        x += PRODUCT(half, 1);                                                                                                                     \
    if (terms > 2)                                                                                                                                 \
        x += PRODUCT(half, 2);
#pragma GCC ivdep
    for (int64_t i = 0; i < BLOCK / 2; i++) {
        float x, y;
        SUM(lower, x)
        SUM(upper, y)
        uint32_t b = as_bits(y), word = to_bfloat16(as_bits(x)) | ((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000u);
        seen |= (word & 0x7FFF7FFFu) + 0x00800080u; /* carries into the sign of a number without a finite exponent */
        memcpy(out + 4 * i, &word, 4);
    }
#undef PRODUCT
#undef SUM
    return seen & 0x80008000u;
}

/* The same with what varies known to the compiler: the number of terms, whether there are an anchor and subtrahends, whether these are the anchor. */
static uint32_t combine_pairs_of(const char *anchor, int terms, const char *const *plus, const char *const *minus,
                                 const float *weights, char *out)
{
    static const char *const nothing[3] = {0, 0, 0};
    const char *const same[3] = {anchor, anchor, anchor};
    int from_anchor = anchor != 0;
    for (int j = 0; j < terms; j++)
        from_anchor &= minus[j] == anchor;
#define CASE(n)                                                                                                                                    \
    if (terms == n) {                                                                                                                              \
        if (from_anchor)                                                                                                                           \
            return combine_pairs(anchor, n, plus, same, weights, out);                                                                      \
        if (anchor && minus[0])                                                                                                                    \
            return combine_pairs(anchor, n, plus, minus, weights, out);                                                                     \
        if (anchor)                                                                                                                                \
            return combine_pairs(anchor, n, plus, nothing, weights, out);                                                                   \
        return minus[0] ? combine_pairs(0, n, plus, minus, weights, out) : combine_pairs(0, n, plus, nothing, weights, out);         \
    }
    CASE(1)
    CASE(2)
    CASE(3)
#undef CASE
    return 1;
}

/* flags: [nonfinite mask, overflow]. operands: anchor, plus_0, minus_0, plus_1 ...; weights of 0 skip. */
void holdfast_combine(int64_t n, int64_t terms, const operand *operands, const float *weights, const operand *out, int64_t *flags)
{
    int64_t used = 0, subtracted = 0, lost = 0, unusual = 0, mask = 0;
    int all_bfloat16 = out->type == BF16 && (operands[0].type == NONE || operands[0].type == BF16);
    const operand *plus[3], *minus[3];
    float factors[3];
    for (int64_t t = 0; t < terms; t++) {
        const operand *p = operands + 1 + 2 * t, *m = p + 1;
        if (weights[t] == 0)
            continue;
        all_bfloat16 &= p->type == BF16 && (m->type == NONE || m->type == BF16);
        if (used < 3)
            plus[used] = p, minus[used] = m, factors[used] = weights[t];
        subtracted += m->type != NONE;
        used++;
    }
    int aside = 0;
    for (int64_t j = 0; j < 1 + 2 * terms; j++)
        aside |= overlap(operands + j, out, n);
    int in_pairs = all_bfloat16 && 1 <= used && used <= 3 && (subtracted == 0 || subtracted == used);
    for (int64_t j = used; j < 3; j++)
        factors[j] = 0;
    float total[BLOCK], value[BLOCK], other[BLOCK];
    char paired[2 * BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t k = LEAST(BLOCK, n - start);
        int64_t skipped = 0;
        for (int64_t t = 0; t < terms; t++) /* before anything is stored: `out` may be an operand */
            if (weights[t] == 0)
                skipped |= nonfinite_mask(operands + 1 + 2 * t, 2, start, k) << (1 + 2 * t);
        mask |= skipped;
        if (in_pairs && k == BLOCK) {
            const char *p[3] = {0, 0, 0}, *m[3] = {0, 0, 0};
            for (int64_t j = 0; j < used; j++)
                p[j] = at(plus[j], start), m[j] = subtracted ? at(minus[j], start) : 0;
            char *target = aside ? paired : (char *)at(out, start);
            if (!combine_pairs_of(operands[0].type == NONE ? 0 : at(operands, start), (int)used, p, m, factors, target)) {
                if (aside)
                    memcpy((char *)at(out, start), paired, sizeof paired);
                continue;
            }
        }
        int empty = operands[0].type == NONE;
        if (empty)
            memset(total, 0, 4 * k);
        else
            decode(operands, start, k, total);
        for (int64_t t = 0; t < terms; t++) {
            const operand *p = operands + 1 + 2 * t, *m = p + 1;
            float w = weights[t];
            if (w == 0)
                continue;
            const float *x = floats(p, start, k, value), *y = m->type == NONE ? 0 : floats(m, start, k, other);
            if (empty && y)
                for (int64_t i = 0; i < k; i++)
                    total[i] = w * (x[i] - y[i]);
            else if (empty)
                for (int64_t i = 0; i < k; i++)
                    total[i] = w * x[i];
            else if (y)
                for (int64_t i = 0; i < k; i++)
                    total[i] = total[i] + w * (x[i] - y[i]);
            else
                for (int64_t i = 0; i < k; i++)
                    total[i] = total[i] + w * x[i];
            empty = 0;
        }
        uint32_t most = largest(total, k);
        if (most >= INFINITE)
            mask |= nonfinite_mask(operands, 1 + 2 * terms, start, k);
        unusual += encode(total, k, out, start, most, &lost);
    }
    flags[0] = mask;
    flags[1] = lost + (mask ? 0 : unusual);
}

/* A stretch as doubles. */
static void widen(const operand *o, int64_t start, int64_t n, double *restrict out)
{
    float buffer[BLOCK];
    if (o->type == F64) {
        memcpy(out, at(o, start), 8 * n);
        return;
    }
    const float *x = floats(o, start, n, buffer);
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
}

/* The nearest float, or, where it is not the number itself, of the two floats around it the one with an odd last bit: rounded once more, to fewer
 * bits, it gives what the number would (Boldo and Melquiond 2008). */
INLINE float to_odd(double x)
{
    float near = (float)x;
    uint32_t bits = as_bits(near);
    if ((double)near != x && x == x && !(bits & 1))
        bits += fabs((double)near) > fabs(x) ? -1 : 1;
    return as_float(bits);
}

/* Stores a block; gives how many of the numbers are not finite, and adds to `lost` how many cease to be. */
static int64_t encode_doubles(const double *x, int64_t n, const operand *out, int64_t start, int64_t *lost)
{
    static const uint64_t quiet_nan = 0x7FF8000000000000u;
    int64_t unusual = 0, beyond = 0;
    float narrow[BLOCK];
    for (int64_t i = 0; i < n; i++)
        unusual += !(fabs(x[i]) <= DBL_MAX);
    if (out->type == F64) {
        char *raw = (char *)at(out, start);
        memcpy(raw, x, 8 * n);
        for (int64_t i = 0; i < n; i++)
            if (x[i] != x[i])
                memcpy(raw + 8 * i, &quiet_nan, 8);
        return unusual;
    }
    for (int64_t i = 0; i < n; i++)
        narrow[i] = out->type == F32 ? (float)x[i] : to_odd(x[i]);
    int64_t after = encode(narrow, n, out, start, largest(narrow, n), &beyond);
    *lost += beyond + after - unusual;
    return unusual;
}

/* As holdfast_combine, where one of the operands or the result is of doubles: computed in double, rounded once. */
void holdfast_combine_doubles(int64_t n, int64_t terms, const operand *operands, const double *weights, const operand *out, int64_t *flags)
{
    int64_t lost = 0, unusual = 0, mask = 0;
    double total[BLOCK], value[BLOCK], other[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t k = LEAST(BLOCK, n - start);
        int empty = operands[0].type == NONE;
        for (int64_t j = 0; j < 1 + 2 * terms; j++) { /* before anything is stored: `out` may be an operand */
            if (operands[j].type == NONE || mask >> j & 1)
                continue;
            widen(operands + j, start, k, value);
            for (int64_t i = 0; i < k; i++)
                mask |= (int64_t)!(fabs(value[i]) <= DBL_MAX) << j;
        }
        if (empty)
            memset(total, 0, sizeof total);
        else
            widen(operands, start, k, total);
        for (int64_t t = 0; t < terms; t++) {
            const operand *minus = operands + 2 + 2 * t;
            if (weights[t] == 0)
                continue;
            widen(operands + 1 + 2 * t, start, k, value);
            if (minus->type != NONE) {
                widen(minus, start, k, other);
                for (int64_t i = 0; i < k; i++)
                    value[i] -= other[i];
            }
            for (int64_t i = 0; i < k; i++)
                total[i] = empty ? weights[t] * value[i] : total[i] + weights[t] * value[i];
            empty = 0;
        }
        unusual += encode_doubles(total, k, out, start, &lost);
    }
    flags[0] = mask;
    flags[1] = lost + (mask ? 0 : unusual);
}


/* ----------------------------------------------------------------------------------------------------------------- TIES */

INLINE v8f where(v8i mask, v8f x)
{
    return (v8f)((v8i)x & mask);
}

INLINE v8f either(v8i mask, v8f x, v8f y)
{
    return (v8f)(((v8i)x & mask) | ((v8i)y & ~mask));
}

#define MODELS 62 /* as many as the mask has bits for, beside the base */

/* operands: base, models. weights may be 0; by_count: divide by the number that agree, and a sum of 0 elects nobody. */
void holdfast_ties(int64_t n, int64_t models, const operand *operands, const float *thresholds, const float *weights, float scale, int64_t by_count,
                   int64_t normalize, const operand *out, int64_t *flags)
{
    float base[BLOCK / 2], merged[BLOCK / 2], decoded[4 * BLOCK], factors[MODELS], shares[MODELS];
    int32_t below_least[MODELS];
    int64_t lost = 0, unusual = 0, mask = 0, size = BLOCK / 2;
    for (int64_t j = 0; j < models; j++) {
        factors[j] = weights ? weights[j] : 1.0f;
        shares[j] = by_count ? 1.0f : factors[j];
        below_least[j] = thresholds[j] > 0 ? (int32_t)as_bits(thresholds[j]) - 1 : -1;
    }
    while (size * models > 4 * BLOCK)
        size /= 2;
    for (int64_t start = 0; start < n; start += size) {
        int64_t k = LEAST(size, n - start), whole = (k + 7) / 8 * 8;
        decode(operands, start, k, base);
        memset(base + k, 0, 4 * (whole - k));
        for (int64_t j = 0; j < models; j++) {
            decode(operands + 1 + j, start, k, decoded + j * size);
            memset(decoded + j * size + k, 0, 4 * (whole - k));
        }
        v8i seen = {0};
        for (int64_t i = 0; i < whole; i += 8) {
            v8f b, sum = {0}, moved = {0}, share = {0};
            memcpy(&b, base + i, 32);
            for (int64_t j = 0; j < models; j++) {
                v8f kept;
                memcpy(&kept, decoded + j * size + i, 32);
                kept = kept - b;
                v8i m = (v8i)kept & (int32_t)MAGNITUDE;
                seen |= (v8i)((v8u)m + 0x00800000u); /* carries into the sign of a number without a finite exponent */
                kept = factors[j] * where(m > below_least[j], kept);
                memcpy(decoded + j * size + i, &kept, 32);
                sum += kept;
            }
            v8i turned = ~(by_count ? sum > 0 : sum >= 0) & (int32_t)SIGN;
            for (int64_t j = 0; j < models; j++) {
                v8f kept;
                memcpy(&kept, decoded + j * size + i, 32);
                v8i agrees = (v8f)((v8i)kept ^ turned) > 0;
                moved += where(agrees, kept);
                share += where(agrees, (v8f){0} + shares[j]);
            }
            if (normalize)
                moved = moved / either(share == 0, (v8f){0} + 1.0f, share);
            moved = moved * scale;
            v8i stays = moved == 0;
            if (by_count)
                stays |= sum == 0;
            moved = either(stays, b, b + moved);
            memcpy(merged + i, &moved, 32);
        }
        if (((seen[0] | seen[1]) | (seen[2] | seen[3]) | (seen[4] | seen[5]) | (seen[6] | seen[7])) < 0)
            mask |= nonfinite_mask(operands, 1 + models, start, k);
        unusual += encode(merged, k, out, start, largest(merged, k), &lost);
    }
    flags[0] = mask;
    flags[1] = lost + (mask ? 0 : unusual);
}

/* ------------------------------------------------------------------------------------------------------------ histogram */

/* Bits of |model - base|, in place of the numbers; gives the largest. */
static uint32_t magnitudes(const operand *operands, int64_t start, int64_t k, uint32_t *restrict bits)
{
    float first[BLOCK], second[BLOCK];
    const float *base = floats(operands, start, k, first), *model = floats(operands + 1, start, k, second);
    uint32_t most = 0;
    for (int64_t i = 0; i < k; i++) {
        uint32_t m = as_bits(model[i] - base[i]) & MAGNITUDE;
        most = m > most ? m : most;
        bits[i] = m;
    }
    return most;
}

/* level 0: counts[m >> 15]; level 1: counts[m & 0x7FFF] of those with m >> 15 == prefix. */
void holdfast_delta_histogram(int64_t n, const operand *operands, int64_t *counts, int64_t level, int64_t prefix, int64_t *flags)
{
    uint32_t bits[BLOCK];
    int64_t mask = 0, unusual = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t k = LEAST(BLOCK, n - start);
        if (magnitudes(operands, start, k, bits) >= INFINITE) {
            mask |= nonfinite_mask(operands, 2, start, k);
            for (int64_t i = 0; i < k; i++) {
                unusual += bits[i] >= INFINITE;
                bits[i] = bits[i] > INFINITE ? 0x7FC00000u : bits[i];
            }
        }
        if (level == 0) {
            for (int64_t i = 0; i < k; i++)
                counts[bits[i] >> 15]++;
        } else {
            int64_t found = 0;
            for (int64_t i = 0; i < k; i++) {
                uint32_t m = bits[i];
                bits[found] = m & 0x7FFF;
                found += m >> 15 == (uint32_t)prefix;
            }
            for (int64_t i = 0; i < found; i++)
                counts[bits[i]]++;
        }
    }
    flags[0] = mask;
    flags[1] = mask ? 0 : unusual;
}

/* -------------------------------------------------------------------------------------------------------------- moments */

/* These sums promise 1e-12, not bits. */
#if defined(__FMA__) && defined(__AVX2__)
#define FUSED(a, b, c) ((v4d)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#else
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif

/* Four lanes each of sum (b - a)^2, sum a^2, sum b^2, sum a b; two of each, since additions take longer than they are apart. */
typedef struct {
    v4d moved[2], a[2], b[2], products[2];
} lanes;

INLINE void add_products(lanes *sums, int j, v4f a, v4f b)
{
    v4d x = __builtin_convertvector(a, v4d), y = __builtin_convertvector(b, v4d), d = y - x;
    sums->moved[j] = FUSED(d, d, sums->moved[j]);
    sums->a[j] = FUSED(x, x, sums->a[j]);
    sums->b[j] = FUSED(y, y, sums->b[j]);
    sums->products[j] = FUSED(x, y, sums->products[j]);
}

INLINE double total(const v4d *parts)
{
    v4d sum = parts[0] + parts[1];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static int32_t signs_agree(const operand *operands, int64_t start, int64_t k)
{
    float first[BLOCK], second[BLOCK];
    const float *a = floats(operands, start, k, first), *b = floats(operands + 1, start, k, second);
    int32_t same = 0;
    for (int64_t i = 0; i < k; i++)
        same += ((a[i] > 0) & (b[i] > 0)) | ((a[i] < 0) & (b[i] < 0)) | ((a[i] == 0) & (b[i] == 0));
    return same;
}

/* out: sum (b - a)^2, sum a^2, sum b^2, sum a b, how many signs agree, NaN or infinite in a, in b. */
void holdfast_moments(int64_t n, const operand *operands, double *out)
{
    float first[BLOCK], second[BLOCK];
    double sums[4] = {0, 0, 0, 0};
    int64_t agree = 0;
    int pairs = operands[0].type == BF16 && operands[1].type == BF16;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t k = LEAST(BLOCK, n - start);
        lanes block = {0};
        if (pairs && k == BLOCK) {
            const uint16_t *p = (const uint16_t *)at(operands, start), *q = (const uint16_t *)at(operands + 1, start);
            uint16_t same = 0;
            for (int64_t i = 0; i < k; i++) {
                uint16_t zero_p = (p[i] & 0x7FFF) == 0, zero_q = (q[i] & 0x7FFF) == 0, opposed = (uint16_t)(p[i] ^ q[i]) >> 15;
                same += (uint16_t)((zero_p == zero_q) & (zero_p | (opposed ^ 1)));
            }
            for (int64_t i = 0; i < k; i += 8) {
                v4u x, y;
                memcpy(&x, p + i, 16);
                memcpy(&y, q + i, 16);
                add_products(&block, 0, (v4f)(x << 16), (v4f)(y << 16));
                add_products(&block, 1, (v4f)(x & 0xFFFF0000u), (v4f)(y & 0xFFFF0000u));
            }
            agree += isfinite(total(block.a) + total(block.b)) ? same : signs_agree(operands, start, k);
        } else {
            const float *a = floats(operands, start, k, first), *b = floats(operands + 1, start, k, second);
            agree += signs_agree(operands, start, k);
            for (int64_t i = 0; i < k; i += 8) {
                float ends[2][8] = {{0}};
                const float *x = a + i, *y = b + i;
                if (k - i < 8) {
                    memcpy(ends[0], x, 4 * (k - i));
                    memcpy(ends[1], y, 4 * (k - i));
                    x = ends[0], y = ends[1];
                }
                for (int j = 0; j < 2; j++) {
                    v4f p, q;
                    memcpy(&p, x + 4 * j, 16);
                    memcpy(&q, y + 4 * j, 16);
                    add_products(&block, j, p, q);
                }
            }
        }
        sums[0] += total(block.moved);
        sums[1] += total(block.a);
        sums[2] += total(block.b);
        sums[3] += total(block.products);
    }
    memcpy(out, sums, sizeof sums);
    out[4] = (double)agree;
    out[5] = isfinite(sums[1]) ? 0 : (double)count_nonfinite(operands, 0, n);
    out[6] = isfinite(sums[2]) ? 0 : (double)count_nonfinite(operands + 1, 0, n);
}

/* -------------------------------------------------------------------------------------------------------------- numbers */

#define M0 0xD2511F53u
#define M1 0xCD9E8D57u
#define W0 0x9E3779B9u
#define W1 0xBB67AE85u
#define CHUNK 256   /* counters: 1024 words */
#define TOGETHER 4 /* vectors that a loop takes on at once: the chains of dependent operations are long */

/* Words 4 * first ... of a stream, four for each of `n` counters; n a multiple of 16, at most CHUNK + 16. */
static void philox(uint64_t key, uint64_t first, int64_t n, uint32_t *restrict words)
{
#ifdef __AVX2__
    const __m256i m0 = _mm256_set1_epi64x(M0), m1 = _mm256_set1_epi64x(M1);
    __m256i keys[10][2];
    for (uint32_t round = 0; round < 10; round++) {
        keys[round][0] = _mm256_set1_epi64x((uint32_t)key + round * W0);
        keys[round][1] = _mm256_set1_epi64x((uint32_t)(key >> 32) + round * W1);
    }
    for (int64_t i = 0; i < n; i += 4 * TOGETHER) {
        __m256i c0[TOGETHER], c1[TOGETHER], c2[TOGETHER], c3[TOGETHER];
        for (int j = 0; j < TOGETHER; j++) {
            uint64_t at = first + (uint64_t)i + 4 * (uint64_t)j;
            c0[j] = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)at), _mm256_set_epi64x(3, 2, 1, 0)); /* only the lower halves of the lanes count */
            c1[j] = _mm256_srli_epi64(c0[j], 32);
            c2[j] = c3[j] = _mm256_setzero_si256();
        }
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++)
#pragma GCC unroll 4
            for (int j = 0; j < TOGETHER; j++) {
                __m256i p0 = _mm256_mul_epu32(c0[j], m0), p1 = _mm256_mul_epu32(c2[j], m1);
                c0[j] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1[j], keys[round][0]));
                c2[j] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3[j], keys[round][1]));
                c1[j] = p1;
                c3[j] = p0;
            }
        for (int j = 0; j < TOGETHER; j++) {
            __m256i a = _mm256_blend_epi32(c0[j], _mm256_slli_epi64(c1[j], 32), 0xAA); /* words 0, 1 of four counters */
            __m256i b = _mm256_blend_epi32(c2[j], _mm256_slli_epi64(c3[j], 32), 0xAA); /* words 2, 3 */
            __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
            _mm256_storeu_si256((__m256i *)(words + 4 * i + 16 * j), _mm256_permute2x128_si256(even, odd, 0x20));
            _mm256_storeu_si256((__m256i *)(words + 4 * i + 16 * j + 8), _mm256_permute2x128_si256(even, odd, 0x31));
        }
    }
#else
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = first + (uint64_t)i;
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = 0, c3 = 0, k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++, k0 += W0, k1 += W1) {
            uint64_t p0 = (uint64_t)c0 * M0, p1 = (uint64_t)c2 * M1;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
        }
        words[4 * i] = c0, words[4 * i + 1] = c1, words[4 * i + 2] = c2, words[4 * i + 3] = c3;
    }
#endif
}

/* The words start ... start + n - 1 at `words`, which has room for 4 * CHUNK + 64; gives where the first lies. n at most 4 * CHUNK. */
static const uint32_t *stream(uint64_t key, uint64_t start, int64_t n, uint32_t *words)
{
    uint64_t first = start / 4, last = (start + (uint64_t)n + 3) / 4;
    philox(key, first, (int64_t)(last - first + 15) / 16 * 16, words);
    return words + (start - 4 * first);
}

/* Wichura's AS 241; see counter.py. The order of operations is that of counter_torch.py. */
static const double CENTRE_NUMERATOR[8] = {
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
    4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3};
static const double CENTRE_DENOMINATOR[8] = {
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3};
static const double TAIL_NUMERATOR[8] = {
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
    1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4};
static const double TAIL_DENOMINATOR[8] = {
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9};
static const double LOG_SERIES[10] = {2.0 / 1, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};

INLINE double polynomial(const double *c, int last, double r)
{
    double value = c[last];
    for (int j = last - 1; j >= 0; j--)
        value = value * r + c[j];
    return value;
}

INLINE double logarithm(double x)
{
    int64_t bits;
    double m;
    memcpy(&bits, &x, 8);
    int64_t exponent = (bits >> 52) - 1022;
    bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000;
    memcpy(&m, &bits, 8);
    int low = m < 0.707106781186547524401;
    double power = (double)(int32_t)(exponent - low), f;
    m = low ? m + m : m;
    f = (m - 1.0) / (m + 1.0);
    return power * 0.693147180559945309417 + f * polynomial(LOG_SERIES, 9, f * f);
}

/* q = u - 1/2 (exactly) and the central approximation of z; n a multiple of 4 * TOGETHER. */
static void centre(const uint32_t *restrict words, int64_t n, double *restrict q, float *restrict z)
{
    for (int64_t i = 0; i < n; i += 4 * TOGETHER) {
        v4d x[TOGETHER], r[TOGETHER], above[TOGETHER], below[TOGETHER];
        for (int j = 0; j < TOGETHER; j++) {
            v4i w;
            memcpy(&w, words + i + 4 * j, 16);
            x[j] = (__builtin_convertvector(w ^ (int32_t)SIGN, v4d) + 0.5) * 0x1p-32;
            r[j] = 0.425 * 0.425 - x[j] * x[j];
            above[j] = (v4d){0} + CENTRE_NUMERATOR[7];
            below[j] = (v4d){0} + CENTRE_DENOMINATOR[7];
        }
#pragma GCC unroll 7
        for (int k = 6; k >= 0; k--)
#pragma GCC unroll 4
            for (int j = 0; j < TOGETHER; j++) {
                above[j] = above[j] * r[j] + CENTRE_NUMERATOR[k];
                below[j] = below[j] * r[j] + CENTRE_DENOMINATOR[k];
            }
        for (int j = 0; j < TOGETHER; j++) {
            v4f rounded = __builtin_convertvector(x[j] * above[j] / below[j], v4f);
            memcpy(q + i + 4 * j, &x[j], 32);
            memcpy(z + i + 4 * j, &rounded, 16);
        }
    }
}

/* z from q, where |q| > 0.425. */
static void tail(double *restrict q, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double r = sqrt(-logarithm(0.5 - fabs(q[i]))) - 1.6;
        q[i] = copysign(polynomial(TAIL_NUMERATOR, 7, r) / polynomial(TAIL_DENOMINATOR, 7, r), q[i]);
    }
}

/* n normal numbers, n at most 4 * CHUNK, at `z`, which has room for 4 * CHUNK. */
static void normal(uint64_t key, uint64_t start, int64_t n, float *restrict z)
{
    uint32_t memory[4 * CHUNK + 64];
    int32_t tails[4 * CHUNK + 1];
    double q[4 * CHUNK], t[4 * CHUNK];
    const uint32_t *words = stream(key, start, n, memory);
    int64_t found = 0;
    centre(words, (n + 15) / 16 * 16, q, z);
    for (int64_t i = 0; i < n; i++) {
        tails[found] = (int32_t)i;
        found += fabs(q[i]) > 0.425;
    }
    for (int64_t i = 0; i < found; i++)
        t[i] = q[tails[i]];
    tail(t, found);
    for (int64_t i = 0; i < found; i++)
        z[tails[i]] = (float)t[i];
}

void holdfast_uniform(uint64_t key, uint64_t start, int64_t n, double *out)
{
    uint32_t memory[4 * CHUNK + 64];
    for (int64_t done = 0; done < n; done += 4 * CHUNK) {
        int64_t k = LEAST(4 * CHUNK, n - done);
        const uint32_t *words = stream(key, start + (uint64_t)done, k, memory);
        for (int64_t i = 0; i < k; i++)
            out[done + i] = ((double)words[i] + 0.5) * 0x1p-32;
    }
}

void holdfast_normal(uint64_t key, uint64_t start, int64_t n, float *out)
{
    float z[4 * CHUNK];
    for (int64_t done = 0; done < n; done += 4 * CHUNK) {
        int64_t k = LEAST(4 * CHUNK, n - done);
        normal(key, start + (uint64_t)done, k, z);
        memcpy(out + done, z, 4 * k);
    }
}

/* operands: x. */
void holdfast_perturb(int64_t n, const operand *operands, uint64_t key, uint64_t start, float sigma, const operand *out, int64_t *flags)
{
    float x[BLOCK], z[BLOCK];
    int64_t lost = 0, unusual = 0, mask = 0;
    for (int64_t done = 0; done < n; done += BLOCK) {
        int64_t k = LEAST(BLOCK, n - done);
        normal(key, start + (uint64_t)done, k, z);
        decode(operands, done, k, x);
        for (int64_t i = 0; i < k; i++)
            x[i] = x[i] + z[i] * sigma;
        uint32_t most = largest(x, k);
        if (most >= INFINITE)
            mask |= nonfinite_mask(operands, 1, done, k);
        unusual += encode(x, k, out, done, most, &lost);
    }
    flags[0] = mask;
    flags[1] = lost + (mask ? 0 : unusual);
}

/* --------------------------------------------------------------------------------------------------------------- stream */

/* XXH3-128 of inputs of more than 240 bytes (Collet, XXH3 specification, default secret, seed 0), fed in pieces. checks/checkpoints/test_streams.py
 * compares with the library; shorter inputs are the library's. */
static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};
#define STRIPE 64
#define ROUND 1024 /* bytes between two scramblings: (sizeof SECRET - STRIPE) / 8 stripes */
#define PRIME32_1 0x9E3779B1u
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu

static const uint64_t FIRST_ACCUMULATORS[8] = {0xC2B2AE3Du,         PRIME64_1,           PRIME64_2,           0x165667B19E3779F9u,
                                               0x85EBCA77C2B2AE63u, 0x85EBCA77u,         0x27D4EB2F165667C5u, PRIME32_1};

INLINE uint64_t load_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8); /* little-endian, as safetensors is */
    return word;
}

typedef uint64_t v4l __attribute__((vector_size(32)));

INLINE v4l load_words(const uint8_t *p)
{
    v4l words;
    memcpy(&words, p, 32);
    return words;
}

INLINE v4l widening_product(v4l a, v4l b)
{
#ifdef __AVX2__
    return (v4l)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

INLINE void digest_stripe(v4l *sums, const uint8_t *p, const uint8_t *secret)
{
    const v4l swapped = {1, 0, 3, 2};
    for (int j = 0; j < 2; j++) {
        v4l words = load_words(p + 32 * j), keyed = words ^ load_words(secret + 32 * j);
        sums[j] += __builtin_shuffle(words, swapped) + widening_product(keyed, keyed >> 32);
    }
}

/* Takes a piece of an input of `size` bytes, which lies at byte `start`, a multiple of ROUND; the last piece ends the input and has at least
 * STRIPE bytes. */
static void digest_piece(uint64_t *state, const uint8_t *p, int64_t start, int64_t length, int64_t size)
{
    v4l sums[2];
    memcpy(sums, state, sizeof sums);
    int64_t rounds = (size - 1) / ROUND - start / ROUND, done = 0; /* the last round is never whole, and not scrambled */
    for (; rounds > 0 && done < length; rounds--, done += ROUND) {
        for (int j = 0; j < ROUND / STRIPE; j++)
            digest_stripe(sums, p + done + STRIPE * j, SECRET + 8 * j);
        for (int j = 0; j < 2; j++) {
            v4l x = sums[j] ^ sums[j] >> 47 ^ load_words(SECRET + sizeof SECRET - STRIPE + 32 * j), prime = {PRIME32_1, PRIME32_1, PRIME32_1, PRIME32_1};
            sums[j] = widening_product(x, prime) + (widening_product(x >> 32, prime) << 32);
        }
    }
    if (start + length == size) {
        for (int64_t j = 0; j < (length - done - 1) / STRIPE; j++)
            digest_stripe(sums, p + done + STRIPE * j, SECRET + 8 * j);
        digest_stripe(sums, p + length - STRIPE, SECRET + sizeof SECRET - STRIPE - 7);
    }
    memcpy(state, sums, sizeof sums);
}

static uint64_t digest_end(const uint64_t *state, const uint8_t *secret, uint64_t sum)
{
    for (int j = 0; j < 4; j++) {
        unsigned __int128 product = (unsigned __int128)(state[2 * j] ^ load_word(secret + 16 * j)) * (state[2 * j + 1] ^ load_word(secret + 16 * j + 8));
        sum += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    sum = (sum ^ sum >> 37) * 0x165667919E3779F9u;
    return sum ^ sum >> 32;
}

static void digest(const uint64_t *state, uint64_t size, uint8_t *out)
{
    uint64_t words[2] = {digest_end(state, SECRET + sizeof SECRET - STRIPE - 11, ~(size * PRIME64_2)), digest_end(state, SECRET + 11, size * PRIME64_1)};
    for (int j = 0; j < 16; j++)
        out[j] = (uint8_t)(words[j / 8] >> (56 - 8 * (j % 8)));
}

typedef struct {
    int64_t descriptor, position; /* of the first element, in bytes */
    int64_t type;
    char *memory;
} place;

enum { MASK, OVERFLOW, DIFFERENT, ERROR, WHERE };

/* Of how many elements base + residual, in float, has not the wanted bits. The residual is that of the two, rounded to float, where none is given. */
static int64_t different(const operand *base, const operand *wanted, const operand *residual, int64_t n)
{
    float first[BLOCK], second[BLOCK], third[BLOCK];
    int64_t count = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t k = LEAST(BLOCK, n - start);
        const float *b = floats(base, start, k, first), *w = floats(wanted, start, k, second);
        const float *r = residual ? floats(residual, start, k, third) : 0;
        int32_t found = 0;
        if (r)
            for (int64_t i = 0; i < k; i++)
                found += as_bits(b[i] + r[i]) != as_bits(w[i]);
        else
            for (int64_t i = 0; i < k; i++)
                found += as_bits(b[i] + -1.0f * (b[i] - w[i])) != as_bits(w[i]);
        count += found;
    }
    return count;
}

/* Reads n elements from each input, combines them and writes the result, in pieces that stay in the second-level cache on the way through.
 *
 * indices: anchor, plus_0, minus_0, plus_1 ... of the sum, as indices into the inputs, or -1. Memories have room for 2 * piece elements. check: a base and
 * a wanted input, or -1, and whether the result is their residual; counts the elements of which base + residual does not give the wanted bits.
 * digests: 16 bytes an input and 16 for the result. results: see the enum; ERROR is an errno, or -1 where a file ends, and WHERE the input or, with their number, the output. */
void holdfast_stream(int64_t n, int64_t piece, int64_t inputs, const place *in, int64_t terms, const int64_t *indices, const float *weights,
                     const place *out, const int64_t *check, uint8_t *digests, int64_t *results)
{
    enum { MOST = 64 }; /* the caller's MOST_OPERANDS, and the result */
    uint64_t states[MOST][8];
    operand sources[MOST], operands[MOST], target = {out->memory, out->type};
    memset(results, 0, 5 * sizeof *results);
    for (int64_t j = 0; j <= inputs; j++)
        memcpy(states[j], FIRST_ACCUMULATORS, sizeof FIRST_ACCUMULATORS);
    for (int64_t start = 0, k; start < n; start += k) {
        k = n - start < 2 * piece ? n - start : piece;
        for (int64_t j = 0; j < inputs; j++) {
            int64_t size = SIZE[in[j].type], length = k * size;
            char *memory = in[j].memory;
            for (int64_t done = 0; done < length;) {
                int64_t got = pread(in[j].descriptor, memory + done, length - done, in[j].position + start * size + done);
                if (got < 0 && errno == EINTR)
                    continue;
                if (got <= 0) {
                    results[ERROR] = got ? errno : -1, results[WHERE] = j;
                    return;
                }
                done += got;
            }
            digest_piece(states[j], (const uint8_t *)memory, start * size, length, n * size);
            sources[j] = (operand){memory, in[j].type};
        }
        for (int64_t j = 0; j < 1 + 2 * terms; j++)
            operands[j] = indices[j] < 0 ? (operand){0, NONE} : sources[indices[j]];
        int64_t size = SIZE[out->type], length = k * size, flags[2];
        holdfast_combine(k, terms, operands, weights, &target, flags);
        results[MASK] |= flags[0];
        results[OVERFLOW] += flags[1];
        if (check[0] >= 0)
            results[DIFFERENT] += different(sources + check[0], sources + check[1], check[2] ? &target : 0, k);
        digest_piece(states[inputs], (const uint8_t *)target.data, start * size, length, n * size);
        for (int64_t done = 0; done < length;) {
            int64_t put = pwrite(out->descriptor, (const char *)target.data + done, length - done, out->position + start * size + done);
            if (put < 0 && errno == EINTR)
                continue;
            if (put <= 0) {
                results[ERROR] = put ? errno : ENOSPC, results[WHERE] = inputs;
                return;
            }
            done += put;
        }
    }
    for (int64_t j = 0; j <= inputs; j++)
        digest(states[j], (uint64_t)(n * SIZE[j < inputs ? in[j].type : out->type]), digests + 16 * j);
}
