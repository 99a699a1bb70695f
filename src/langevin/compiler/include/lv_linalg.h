/* Dense linear algebra for generated code, in double (`_f64`) and float (`_f32`).
 *
 * Matrices are a pointer, a row stride and a column stride, in elements; inputs may have stride 0. Small problems
 * run plain loops, large ones BLAS and LAPACK after `lv_use_blas`, and blocked loops without it. Nothing is allocated.
 *
 * lv_linalg_real.h holds the functions for one type.
 */
#ifndef LV_LINALG_H
#define LV_LINALG_H

#include <limits.h>
#include <stddef.h>

#include "lv_math.h"

/* The Fortran interface with 32-bit integers, in the order of `lv_use_blas`. */
#define LV_BLAS_TYPES(T, S)                                                                                     \
    typedef void (*lv_gemm_##S##_t)(const char *, const char *, const int *, const int *, const int *, const T *, \
                                    const T *, const int *, const T *, const int *, const T *, T *, const int *); \
    typedef void (*lv_potrf_##S##_t)(const char *, const int *, T *, const int *, int *);                       \
    typedef void (*lv_trsm_##S##_t)(const char *, const char *, const char *, const char *, const int *,        \
                                    const int *, const T *, const T *, const int *, T *, const int *);          \
    typedef void (*lv_getrf_##S##_t)(const int *, const int *, T *, const int *, int *, int *);                 \
    static lv_gemm_##S##_t lv_blas_gemm_##S;                                                                    \
    static lv_potrf_##S##_t lv_blas_potrf_##S;                                                                  \
    static lv_trsm_##S##_t lv_blas_trsm_##S;                                                                    \
    static lv_getrf_##S##_t lv_blas_getrf_##S;
LV_BLAS_TYPES(double, f64)
LV_BLAS_TYPES(float, f32)
#undef LV_BLAS_TYPES

/* Take dgemm, sgemm, dpotrf, spotrf, dtrsm, strsm, dgetrf, sgetrf; NULL keeps plain loops. */
__attribute__((unused)) static void lv_use_blas(void *const *table) {
#define LV_TAKE(i, NAME, S) lv_blas_##NAME##_##S = (lv_##NAME##_##S##_t)(uintptr_t)(table ? table[i] : NULL)
    LV_TAKE(0, gemm, f64);
    LV_TAKE(1, gemm, f32);
    LV_TAKE(2, potrf, f64);
    LV_TAKE(3, potrf, f32);
    LV_TAKE(4, trsm, f64);
    LV_TAKE(5, trsm, f32);
    LV_TAKE(6, getrf, f64);
    LV_TAKE(7, getrf, f32);
#undef LV_TAKE
}

#if defined(__clang__)
#define LV_NOINLINE static __attribute__((unused, noinline))
#else /* copies for constant arguments would take long to compile */
#define LV_NOINLINE static __attribute__((unused, noinline, noclone))
#endif
#define LV_UNROLL _Pragma("GCC unroll 16")

/* Bytes of a vector register. */
#if defined(__AVX512F__)
#define LV_VECTOR 64
#elif defined(__AVX__)
#define LV_VECTOR 32
#else
#define LV_VECTOR 16
#endif

#define LV_T double
#define LV_REAL(NAME) lv_##NAME##_f64
#define LV_MATH(NAME) lv_##NAME
#include "lv_linalg_real.h"
#undef LV_T
#undef LV_REAL
#undef LV_MATH

#define LV_T float
#define LV_REAL(NAME) lv_##NAME##_f32
#define LV_MATH(NAME) lv_##NAME##f
#include "lv_linalg_real.h"
#undef LV_T
#undef LV_REAL
#undef LV_MATH

#endif
