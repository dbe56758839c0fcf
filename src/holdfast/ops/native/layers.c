/* RMSNorm and SwiGLU of decoders on CPUs in float32, forward and backward, one pass over memory each (see ops/layers.py for the maths and the Python side).
 * Plain C with OpenMP, vectorised by the compiler; built once per machine.
 *
 * PyTorch takes each of them in three to six passes, and their gradients in up to ten; at a million parameters one pass each saves an eighth of a step. Threads
 * have rows of their own, and sums over rows are added thread by thread, so that a result is the same at every call with as many threads.
 */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define FEW 32768 /* elements below which threads cost more than they bring */
#define ROWS 64   /* whose part of the weight's gradient is summed in float before it goes into a double */

/* y = w x r with r = 1 / sqrt(mean(x^2) + epsilon) of each row, which is kept. */
void holdfast_rms_norm(int64_t rows, int64_t n, const float *x, const float *w, double epsilon, float *y, float *scale)
{
#pragma omp parallel for schedule(static) if (rows * n > FEW)
    for (int64_t i = 0; i < rows; i++) {
        const float *a = x + i * n;
        float *b = y + i * n, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++)
            sum += a[j] * a[j];
        float r = 1.0f / sqrtf(sum / (float)n + (float)epsilon);
        scale[i] = r;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            b[j] = w[j] * (a[j] * r);
    }
}

/* dx = r (g w - x r^2 mean(g w x)) and, with dw, dw = sum over rows of g x r. Not 0: no memory. */
int holdfast_rms_norm_backward(int64_t rows, int64_t n, const float *x, const float *w, const float *scale, const float *g, float *dx, float *dw)
{
    int most = rows * n > FEW ? omp_get_max_threads() : 1, used = 1;
    double *sums = calloc((size_t)most * n, sizeof(double));
    float *parts = malloc((size_t)most * n * sizeof(float));
    if (!sums || !parts) {
        free(sums);
        free(parts);
        return 1;
    }
#pragma omp parallel num_threads(most)
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t each = (rows + threads - 1) / threads, first = LEAST(thread * each, rows), last = LEAST(first + each, rows);
        double *sum = sums + (int64_t)thread * n;
        float *part = parts + (int64_t)thread * n;
#pragma omp single nowait
        used = threads;
        for (int64_t start = first; start < last; start += ROWS) {
            for (int64_t j = 0; j < n; j++)
                part[j] = 0;
            for (int64_t i = start; i < LEAST(start + ROWS, last); i++) {
                const float *a = x + i * n, *c = g + i * n;
                float *b = dx + i * n, r = scale[i], s = 0;
#pragma omp simd reduction(+ : s)
                for (int64_t j = 0; j < n; j++) {
                    float v = c[j] * a[j];
                    s += v * w[j];
                    part[j] += v * r;
                }
                float k = s * r * r / (float)n;
#pragma omp simd
                for (int64_t j = 0; j < n; j++)
                    b[j] = r * (c[j] * w[j] - a[j] * k);
            }
            for (int64_t j = 0; j < n; j++)
                sum[j] += part[j];
        }
    }
    if (dw)
        for (int64_t j = 0; j < n; j++) {
            double s = 0;
            for (int t = 0; t < used; t++)
                s += sums[(int64_t)t * n + j];
            dw[j] = (float)s;
        }
    free(sums);
    free(parts);
    return 0;
}

/* 1 / (1 + exp(-x)), within 3 units in the last place (exp by Cephes' polynomial); NaN stays NaN. */
INLINE float logistic(float x)
{
    float c = -x;
    c = c < -87.3f ? -87.3f : c;
    c = c > 88.3f ? 88.3f : c;
    float n = rintf(c * 1.44269504088896341f);
    float r = c - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    union { int32_t i; float f; } power;
    power.i = ((int32_t)n + 127) << 23;
    return 1.0f / (1.0f + y * power.f);
}

/* y = silu(a) b, silu(a) = a logistic(a). */
void holdfast_swiglu(int64_t count, const float *a, const float *b, float *y)
{
#pragma omp parallel for simd schedule(static) if (count > FEW)
    for (int64_t i = 0; i < count; i++)
        y[i] = a[i] * logistic(a[i]) * b[i];
}

/* da = g b (s + a s (1 - s)) with s = logistic(a); db = g silu(a). */
void holdfast_swiglu_backward(int64_t count, const float *a, const float *b, const float *g, float *da, float *db)
{
#pragma omp parallel for simd schedule(static) if (count > FEW)
    for (int64_t i = 0; i < count; i++) {
        float s = logistic(a[i]), silu = a[i] * s;
        db[i] = g[i] * silu;
        da[i] = g[i] * b[i] * (s + silu * (1.0f - s));
    }
}
