/* Eigenvalues and eigenvectors of a symmetric matrix by cyclic Jacobi rotations (Golub and Van Loan, 8.5). */
#ifndef LV_EIGEN_H
#define LV_EIGEN_H
#include <float.h>
#include <math.h>

#define LV_EIGEN(T, NAME, SQRT, FABS, EPSILON)                                                                              \
    /* a: n x n, contiguous, destroyed; v: n x n with strides; w: n values in ascending order. */                         \
    static inline void lv_eigh_##NAME(long n, T *a, T *w, long ws, T *v, long vrs, long vcs) {                              \
        for (long i = 0; i < n; i++)                                                                                        \
            for (long j = 0; j < n; j++) v[i * vrs + j * vcs] = i == j;                                                     \
        for (int sweep = 0; sweep < 60; sweep++) {                                                                          \
            T off = 0, all = 0;                                                                                             \
            for (long i = 0; i < n; i++)                                                                                    \
                for (long j = 0; j < n; j++) {                                                                              \
                    all += a[i * n + j] * a[i * n + j];                                                                     \
                    if (i != j) off += a[i * n + j] * a[i * n + j];                                                         \
                }                                                                                                           \
            if (!(off > EPSILON * EPSILON * all)) break;                                                                    \
            for (long p = 0; p < n - 1; p++)                                                                                \
                for (long q = p + 1; q < n; q++) {                                                                          \
                    const T x = a[p * n + q];                                                                               \
                    if (x == 0) continue;                                                                                   \
                    const T theta = (a[q * n + q] - a[p * n + p]) / (2 * x);                                                \
                    const T t = (theta >= 0 ? 1 : -1) / (FABS(theta) + SQRT(theta * theta + 1));                            \
                    const T c = 1 / SQRT(t * t + 1), s = t * c;                                                             \
                    for (long k = 0; k < n; k++) {                                                                          \
                        const T kp = a[k * n + p], kq = a[k * n + q];                                                       \
                        a[k * n + p] = c * kp - s * kq;                                                                     \
                        a[k * n + q] = s * kp + c * kq;                                                                     \
                    }                                                                                                       \
                    for (long k = 0; k < n; k++) {                                                                          \
                        const T pk = a[p * n + k], qk = a[q * n + k];                                                       \
                        a[p * n + k] = c * pk - s * qk;                                                                     \
                        a[q * n + k] = s * pk + c * qk;                                                                     \
                    }                                                                                                       \
                    for (long k = 0; k < n; k++) {                                                                          \
                        const T kp = v[k * vrs + p * vcs], kq = v[k * vrs + q * vcs];                                       \
                        v[k * vrs + p * vcs] = c * kp - s * kq;                                                             \
                        v[k * vrs + q * vcs] = s * kp + c * kq;                                                             \
                    }                                                                                                       \
                }                                                                                                           \
        }                                                                                                                   \
        for (long i = 0; i < n; i++) w[i * ws] = a[i * n + i];                                                              \
        for (long i = 0; i < n - 1; i++) { /* ascending */                                                                  \
            long least = i;                                                                                                 \
            for (long j = i + 1; j < n; j++)                                                                                \
                if (w[j * ws] < w[least * ws]) least = j;                                                                   \
            if (least == i) continue;                                                                                       \
            const T x = w[i * ws];                                                                                          \
            w[i * ws] = w[least * ws];                                                                                      \
            w[least * ws] = x;                                                                                              \
            for (long k = 0; k < n; k++) {                                                                                  \
                const T y = v[k * vrs + i * vcs];                                                                           \
                v[k * vrs + i * vcs] = v[k * vrs + least * vcs];                                                            \
                v[k * vrs + least * vcs] = y;                                                                               \
            }                                                                                                               \
        }                                                                                                                   \
    }

LV_EIGEN(double, f64, sqrt, fabs, DBL_EPSILON)
LV_EIGEN(float, f32, sqrtf, fabsf, FLT_EPSILON)
#endif
