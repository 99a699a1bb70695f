/* The functions of lv_linalg.h for one type: LV_T, named LV_REAL(name), with LV_MATH(name) from lv_math.h. */

/* ---------------------------------------------------------------- vectors */

LV_NOINLINE void LV_REAL(axpy)(long n, LV_T alpha, const LV_T *x, long xs, LV_T *y, long ys) {
    if (xs == 1 && ys == 1)
        for (long i = 0; i < n; i++) y[i] = LV_MATH(fma)(alpha, x[i], y[i]);
    else
        for (long i = 0; i < n; i++) y[i * ys] = LV_MATH(fma)(alpha, x[i * xs], y[i * ys]);
}

#define LV_LANES 32

/* n contiguous elements: in place, or copied to `buffer`. */
LV_FN const LV_T *LV_REAL(block)(const LV_T *x, long stride, long n, LV_T *buffer) {
    if (stride == 1) return x;
    for (long i = 0; i < n; i++) buffer[i] = x[i * stride];
    return buffer;
}

LV_NOINLINE LV_T LV_REAL(dot_block)(long n, const LV_T *x, const LV_T *y) {
    LV_T sums[LV_LANES];
    LV_T s = 0;
    if (n < LV_LANES) {
        for (long i = 0; i < n; i++) s = LV_MATH(fma)(x[i], y[i], s);
        return s;
    }
    for (long i = 0; i < LV_LANES; i++) sums[i] = x[i] * y[i];
    long k = LV_LANES;
    for (; k + LV_LANES <= n; k += LV_LANES)
        for (long i = 0; i < LV_LANES; i++) sums[i] = LV_MATH(fma)(x[k + i], y[k + i], sums[i]);
    for (long i = 0; i < n - k; i++) sums[i] = LV_MATH(fma)(x[k + i], y[k + i], sums[i]);
    for (long width = LV_LANES / 2; width; width /= 2)
        for (long i = 0; i < width; i++) sums[i] += sums[i + width];
    return sums[0];
}

#undef LV_LANES

/* ---------------------------------------------------------------- matrix products */

typedef LV_T LV_REAL(vec) __attribute__((vector_size(LV_VECTOR)));
typedef LV_T LV_REAL(loose) __attribute__((vector_size(LV_VECTOR), aligned(sizeof(LV_T)), may_alias));
#define LV_WIDTH ((long)(LV_VECTOR / sizeof(LV_T)))
#define LV_DEPTH 256 /* products that one accumulator sums; the rest is added block by block */
#define LV_ROWS 128  /* rows of A per packed panel of B */

/* Lanes of a fused multiply-add; compilers make it one instruction. */
LV_FN LV_REAL(vec) LV_REAL(vec_fma)(LV_REAL(vec) a, LV_REAL(vec) b, LV_REAL(vec) c) {
#if defined(__FMA__) || defined(__aarch64__)
    LV_REAL(vec) r;
    LV_UNROLL
    for (int i = 0; i < LV_WIDTH; i++) r[i] = LV_MATH(fma)(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}

/* C = alpha sums + beta C for one tile; a row of sums has 2 LV_WIDTH elements. */
LV_NOINLINE void LV_REAL(store)(long rows, long columns, const LV_T *sums, LV_T *c, long crs, long ccs, LV_T alpha,
                                LV_T beta) {
    for (; rows--; c += crs, sums += 2 * LV_WIDTH) {
        if (ccs != 1)
            for (long j = 0; j < columns; j++) {
                LV_T *place = c + j * ccs, s = alpha * sums[j];
                *place = beta == 0 ? s : s + beta * *place;
            }
        else if (beta == 0)
            for (long j = 0; j < columns; j++) c[j] = alpha * sums[j];
        else
            for (long j = 0; j < columns; j++) c[j] = alpha * sums[j] + beta * c[j];
    }
}

/* rows x (vectors LV_WIDTH) of C; rows of B are `step` apart and contiguous. Only `columns` of C exist. */
LV_FN void LV_REAL(kernel)(const int rows, const int vectors, long columns, long k, const LV_T *a, long ars, long acs,
                           const LV_T *b, long step, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    LV_REAL(vec) sums[4][2];
    LV_UNROLL
    for (int i = 0; i < rows; i++)
        LV_UNROLL
        for (int j = 0; j < vectors; j++) sums[i][j] = (LV_REAL(vec)){0};
    for (long p = 0; p < k; p++) {
        LV_REAL(vec) line[2];
        LV_UNROLL
        for (int j = 0; j < vectors; j++) line[j] = *(const LV_REAL(loose) *)(b + p * step + j * LV_WIDTH);
        LV_UNROLL
        for (int i = 0; i < rows; i++) {
            LV_REAL(vec) x = a[i * ars + p * acs] - (LV_REAL(vec)){0};
            LV_UNROLL
            for (int j = 0; j < vectors; j++) sums[i][j] = LV_REAL(vec_fma)(x, line[j], sums[i][j]);
        }
    }
    LV_T flat[4 * 2 * LV_WIDTH];
    LV_UNROLL
    for (int i = 0; i < rows; i++)
        LV_UNROLL
        for (int j = 0; j < vectors; j++) *(LV_REAL(loose) *)(flat + (2 * i + j) * LV_WIDTH) = sums[i][j];
    LV_REAL(store)(rows, columns, flat, c, crs, ccs, alpha, beta);
}

/* All rows of C against one panel of B. */
LV_FN void LV_REAL(panel)(const int vectors, long m, long columns, long k, const LV_T *a, long ars, long acs,
                          const LV_T *b, long step, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    for (; m >= 4; m -= 4, a += 4 * ars, c += 4 * crs)
        LV_REAL(kernel)(4, vectors, columns, k, a, ars, acs, b, step, c, crs, ccs, alpha, beta);
    if (m >= 2) {
        LV_REAL(kernel)(2, vectors, columns, k, a, ars, acs, b, step, c, crs, ccs, alpha, beta);
        m -= 2, a += 2 * ars, c += 2 * crs;
    }
    if (m) LV_REAL(kernel)(1, vectors, columns, k, a, ars, acs, b, step, c, crs, ccs, alpha, beta);
}
LV_NOINLINE void LV_REAL(panel1)(long m, long columns, long k, const LV_T *a, long ars, long acs, const LV_T *b,
                                 long step, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    LV_REAL(panel)(1, m, columns, k, a, ars, acs, b, step, c, crs, ccs, alpha, beta);
}
LV_NOINLINE void LV_REAL(panel2)(long m, long columns, long k, const LV_T *a, long ars, long acs, const LV_T *b,
                                 long step, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    LV_REAL(panel)(2, m, columns, k, a, ars, acs, b, step, c, crs, ccs, alpha, beta);
}

/* Four rows of A, contiguous, times a contiguous vector. */
LV_NOINLINE void LV_REAL(rows4)(long k, const LV_T *a, long ars, const LV_T *x, LV_T *y) {
    LV_REAL(vec) sums[4][2];
    LV_UNROLL
    for (int i = 0; i < 4; i++) sums[i][0] = sums[i][1] = (LV_REAL(vec)){0};
    long p = 0;
    for (; p + 2 * LV_WIDTH <= k; p += 2 * LV_WIDTH)
        LV_UNROLL
        for (int j = 0; j < 2; j++) {
            LV_REAL(vec) v = *(const LV_REAL(loose) *)(x + p + j * LV_WIDTH);
            LV_UNROLL
            for (int i = 0; i < 4; i++)
                sums[i][j] = LV_REAL(vec_fma)(*(const LV_REAL(loose) *)(a + i * ars + p + j * LV_WIDTH), v, sums[i][j]);
        }
    LV_UNROLL
    for (int i = 0; i < 4; i++) {
        LV_REAL(vec) v = sums[i][0] + sums[i][1];
        LV_T s = 0;
        for (long q = p; q < k; q++) s = LV_MATH(fma)(a[i * ars + q], x[q], s);
        LV_UNROLL
        for (long width = LV_WIDTH / 2; width; width /= 2)
            LV_UNROLL
            for (long l = 0; l < width; l++) v[l] += v[l + width];
        y[i] = s + v[0];
    }
}

/* Eight short rows of A times a contiguous vector, in eight scalar sums. */
LV_NOINLINE void LV_REAL(rows8)(long k, const LV_T *a, long ars, const LV_T *x, LV_T *y) {
    LV_T sums[8];
    LV_UNROLL
    for (int i = 0; i < 8; i++) sums[i] = 0;
    for (long p = 0; p < k; p++) {
        LV_UNROLL
        for (int i = 0; i < 8; i++) sums[i] = LV_MATH(fma)(a[i * ars + p], x[p], sums[i]);
    }
    LV_UNROLL
    for (int i = 0; i < 8; i++) y[i] = sums[i];
}

/* C (m x 1) = alpha A x + beta C for contiguous rows of A. */
LV_NOINLINE void LV_REAL(rows_times_vector)(long m, long k, const LV_T *a, long ars, const LV_T *x, long xs, LV_T *c,
                                            long crs, LV_T alpha, LV_T beta) {
    LV_T buffer[LV_DEPTH];
    for (long p = 0; p < k; p += LV_DEPTH, beta = 1) {
        long depth = k - p < LV_DEPTH ? k - p : LV_DEPTH;
        const LV_T *v = LV_REAL(block)(x + p * xs, xs, depth, buffer);
        for (long i = 0; i < m; i += 8) {
            LV_T y[8];
            const LV_T *row = a + i * ars + p;
            long rows = m - i < 8 ? m - i : 8;
            if (rows == 8 && depth <= 32)
                LV_REAL(rows8)(depth, row, ars, v, y);
            else if (rows == 8)
                LV_REAL(rows4)(depth, row, ars, v, y), LV_REAL(rows4)(depth, row + 4 * ars, ars, v, y + 4);
            else
                for (long r = 0; r < rows; r++) y[r] = LV_REAL(dot_block)(depth, row + r * ars, v);
            for (long r = 0; r < rows; r++) {
                LV_T *place = c + (i + r) * crs, s = alpha * y[r];
                *place = beta == 0 ? s : s + beta * *place;
            }
        }
    }
}

/* C (1 x n) = alpha x B + beta C for contiguous rows of B: eight rows at a time. */
LV_NOINLINE void LV_REAL(vector_times_rows)(long n, long k, const LV_T *x, long xs, const LV_T *b, long brs, LV_T *c,
                                            long ccs, LV_T alpha, LV_T beta) {
    LV_T sums[LV_DEPTH];
    for (long p = 0; p < k; p += LV_DEPTH, beta = 1)
        for (long j = 0; j < n; j += LV_DEPTH) {
            long depth = k - p < LV_DEPTH ? k - p : LV_DEPTH, columns = n - j < LV_DEPTH ? n - j : LV_DEPTH, q = 0;
            for (long l = 0; l < columns; l++) sums[l] = 0;
            for (; q + 8 <= depth; q += 8) {
                const LV_T *r = b + (p + q) * brs + j, *v = x + (p + q) * xs;
                LV_T v0 = v[0], v1 = v[xs], v2 = v[2 * xs], v3 = v[3 * xs], v4 = v[4 * xs], v5 = v[5 * xs], v6 = v[6 * xs];
                LV_T v7 = v[7 * xs];
                for (long l = 0; l < columns; l++) {
                    LV_T s = v0 * r[l], t = v4 * r[4 * brs + l];
                    s = LV_MATH(fma)(v1, r[brs + l], s), t = LV_MATH(fma)(v5, r[5 * brs + l], t);
                    s = LV_MATH(fma)(v2, r[2 * brs + l], s), t = LV_MATH(fma)(v6, r[6 * brs + l], t);
                    s = LV_MATH(fma)(v3, r[3 * brs + l], s), t = LV_MATH(fma)(v7, r[7 * brs + l], t);
                    sums[l] += s + t;
                }
            }
            for (; q < depth; q++) LV_REAL(axpy)(columns, x[(p + q) * xs], b + (p + q) * brs + j, 1, sums, 1);
            LV_REAL(store)(1, columns, sums, c + j * ccs, 0, ccs, alpha, beta);
        }
}

LV_NOINLINE void LV_REAL(mm_loops)(long m, long n, long k, const LV_T *a, long ars, long acs, const LV_T *b, long brs,
                                   long bcs, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    if (n == 1 && acs == 1) {
        LV_REAL(rows_times_vector)(m, k, a, ars, b, brs, c, crs, alpha, beta);
        return;
    }
    if (n == 1 && ars == 1) {
        LV_REAL(vector_times_rows)(m, k, b, brs, a, acs, c, crs, alpha, beta);
        return;
    }
    if (m == 1 && brs == 1 && bcs != 1) {
        LV_REAL(rows_times_vector)(n, k, b, bcs, a, acs, c, ccs, alpha, beta);
        return;
    }
    if (m == 1 && bcs == 1) {
        LV_REAL(vector_times_rows)(n, k, a, acs, b, brs, c, ccs, alpha, beta);
        return;
    }
    /* Vectors run along the columns of B; the transposed product runs along the rows of A. */
    if (ars == 1 && (bcs != 1 || (n < LV_WIDTH && n < m))) {
        const LV_T *left = a;
        long rows = m, rs = ars, cs = acs, out = crs;
        m = n, n = rows, a = b, ars = bcs, acs = brs, b = left, brs = cs, bcs = rs, crs = ccs, ccs = out;
    }
    LV_T packed[LV_DEPTH * 2 * LV_WIDTH];
    if (n % LV_WIDTH) /* Columns of a panel that do not exist are computed, but not stored. */
        for (long q = 0; q < (k < LV_DEPTH ? k : LV_DEPTH) * 2 * LV_WIDTH; q++) packed[q] = 0;
    for (long p = 0; p < k; p += LV_DEPTH, beta = 1) {
        long depth = k - p < LV_DEPTH ? k - p : LV_DEPTH;
        for (long i = 0; i < m; i += LV_ROWS) {
            long rows = m - i < LV_ROWS ? m - i : LV_ROWS;
            for (long j = 0; j < n; j += 2 * LV_WIDTH) {
                long columns = n - j < 2 * LV_WIDTH ? n - j : 2 * LV_WIDTH;
                long width = columns <= LV_WIDTH ? LV_WIDTH : 2 * LV_WIDTH, step = brs;
                const LV_T *panel = b + p * brs + j * bcs, *left = a + i * ars + p * acs;
                LV_T *place = c + i * crs + j * ccs;
                if (bcs != 1 || columns < width || (rows >= 64 && brs > 64)) {
                    if (bcs == 1)
                        for (long q = 0; q < depth; q++)
                            for (long l = 0; l < columns; l++) packed[q * width + l] = panel[q * brs + l];
                    else
                        for (long l = 0; l < columns; l++)
                            for (long q = 0; q < depth; q++) packed[q * width + l] = panel[q * brs + l * bcs];
                    panel = packed, step = width;
                }
                if (width == LV_WIDTH)
                    LV_REAL(panel1)(rows, columns, depth, left, ars, acs, panel, step, place, crs, ccs, alpha, beta);
                else
                    LV_REAL(panel2)(rows, columns, depth, left, ars, acs, panel, step, place, crs, ccs, alpha, beta);
            }
        }
    }
}

/* The leading dimension and transposition ('N' or 'T') of a column-major operand; 0 if BLAS cannot take it. */
LV_FN char LV_REAL(layout)(long rows, long columns, long rs, long cs, int *leading) {
    if (rs == 1 && cs >= rows && cs >= 1 && cs <= INT_MAX) return *leading = (int)cs, 'N';
    if (cs == 1 && rs >= columns && rs >= 1 && rs <= INT_MAX) return *leading = (int)rs, 'T';
    return 0;
}

/* BLAS is faster than the loops here from this many products m n k, unless m or n is small. */
#define LV_BLAS_PRODUCTS 64000.0
#define LV_BLAS_SIDE ((long)(64 / sizeof(LV_T)))

LV_NOINLINE void LV_REAL(mm_large)(long m, long n, long k, const LV_T *a, long ars, long acs, const LV_T *b, long brs,
                                   long bcs, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    if (k <= 0 || alpha == 0) {
        for (long i = 0; i < m; i++)
            for (long j = 0; j < n; j++) {
                LV_T *place = c + i * crs + j * ccs;
                *place = beta == 0 ? 0 : beta * *place;
            }
        return;
    }
    if (LV_REAL(blas_gemm) && m > LV_BLAS_SIDE && n > LV_BLAS_SIDE && m <= INT_MAX && n <= INT_MAX && k <= INT_MAX &&
        (double)m * (double)n * (double)k >= LV_BLAS_PRODUCTS) {
        int lda, ldb, ldc, mi = (int)m, ni = (int)n, ki = (int)k;
        char ta = LV_REAL(layout)(m, k, ars, acs, &lda), tb = LV_REAL(layout)(k, n, brs, bcs, &ldb);
        char tc = LV_REAL(layout)(m, n, crs, ccs, &ldc);
        if (ta && tb && tc == 'N') {
            LV_REAL(blas_gemm)(&ta, &tb, &mi, &ni, &ki, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
            return;
        }
        if (ta && tb && tc == 'T') { /* C^T = B^T A^T */
            ta = ta == 'N' ? 'T' : 'N', tb = tb == 'N' ? 'T' : 'N';
            LV_REAL(blas_gemm)(&tb, &ta, &ni, &mi, &ki, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
            return;
        }
    }
    LV_REAL(mm_loops)(m, n, k, a, ars, acs, b, brs, bcs, c, crs, ccs, alpha, beta);
}

LV_NOINLINE void LV_REAL(mm_small)(long m, long n, long k, const LV_T *a, long ars, long acs, const LV_T *b, long brs,
                                   long bcs, LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            LV_T *place = c + i * crs + j * ccs, s = 0;
            for (long p = 0; p < k; p++) s = LV_MATH(fma)(a[i * ars + p * acs], b[p * brs + j * bcs], s);
            *place = beta == 0 ? alpha * s : alpha * s + beta * *place;
        }
}

/* C = alpha A B + beta C for A (m x k), B (k x n); beta = 0 does not read C. */
LV_FN void LV_REAL(mm)(long m, long n, long k, const LV_T *a, long ars, long acs, const LV_T *b, long brs, long bcs,
                       LV_T *c, long crs, long ccs, LV_T alpha, LV_T beta) {
    if (m * n * k > 64 || k <= 0)
        LV_REAL(mm_large)(m, n, k, a, ars, acs, b, brs, bcs, c, crs, ccs, alpha, beta);
    else
        LV_REAL(mm_small)(m, n, k, a, ars, acs, b, brs, bcs, c, crs, ccs, alpha, beta);
}

/* ---------------------------------------------------------------- triangular solves */

#define LV_SMALL 16 /* order up to which plain loops are faster than LAPACK */

/* B <- A^-1 B for triangular A. Splits in halves, so that most work is a matrix product. */
LV_NOINLINE void LV_REAL(solve_left)(long n, long nrhs, const LV_T *a, long ars, long acs, LV_T *b, long brs, long bcs,
                                 int upper, int unit) {
    if (n > LV_SMALL) {
        long half = n / 2, rest = n - half;
        const LV_T *a22 = a + half * (ars + acs), *a21 = a + half * ars, *a12 = a + half * acs;
        LV_T *b2 = b + half * brs;
        if (upper) {
            LV_REAL(solve_left)(rest, nrhs, a22, ars, acs, b2, brs, bcs, upper, unit);
            LV_REAL(mm)(half, nrhs, rest, a12, ars, acs, b2, brs, bcs, b, brs, bcs, -1, 1);
            LV_REAL(solve_left)(half, nrhs, a, ars, acs, b, brs, bcs, upper, unit);
        } else {
            LV_REAL(solve_left)(half, nrhs, a, ars, acs, b, brs, bcs, upper, unit);
            LV_REAL(mm)(rest, nrhs, half, a21, ars, acs, b, brs, bcs, b2, brs, bcs, -1, 1);
            LV_REAL(solve_left)(rest, nrhs, a22, ars, acs, b2, brs, bcs, upper, unit);
        }
        return;
    }
    for (long step = 0; step < n; step++) {
        long i = upper ? n - 1 - step : step;
        LV_T *row = b + i * brs;
        for (long s = 0; s < step; s++) {
            long j = upper ? n - 1 - s : s;
            LV_REAL(axpy)(nrhs, -a[i * ars + j * acs], b + j * brs, bcs, row, bcs);
        }
        if (!unit)
            for (long r = 0; r < nrhs; r++) row[r * bcs] /= a[i * (ars + acs)];
    }
}

/* B <- op(A)^-1 B (left) or B op(A)^-1; B has nrhs columns (left) or rows. Only one triangle of A is read. */
LV_NOINLINE void LV_REAL(trsolve)(long n, long nrhs, const LV_T *a, long ars, long acs, LV_T *b, long brs, long bcs,
                              int upper, int transpose, int left, int unit) {
    if (!left) { /* X op(A) = B is op(A)^T X^T = B^T */
        long t = brs;
        brs = bcs, bcs = t, transpose = !transpose;
    }
    if (transpose) {
        long t = ars;
        ars = acs, acs = t, upper = !upper;
    }
    int lda, ldb, ni = (int)n, ri = (int)nrhs;
    /* For one right-hand side the loops are faster. */
    if (n > LV_SMALL && nrhs > 1 && LV_REAL(blas_trsm) && n <= INT_MAX && nrhs <= INT_MAX) {
        char ta = LV_REAL(layout)(n, n, ars, acs, &lda), tb = LV_REAL(layout)(n, nrhs, brs, bcs, &ldb);
        char side = tb == 'N' ? 'L' : 'R', diagonal = unit ? 'U' : 'N';
        LV_T one = 1;
        if (ta && tb) {
            /* A column-major 'T' is the transposed of what is stored: the other triangle. */
            char triangle = (ta == 'N') == (upper != 0) ? 'U' : 'L', op = (ta == 'N') == (tb == 'N') ? 'N' : 'T';
            if (tb == 'N')
                LV_REAL(blas_trsm)(&side, &triangle, &op, &diagonal, &ni, &ri, &one, a, &lda, b, &ldb);
            else
                LV_REAL(blas_trsm)(&side, &triangle, &op, &diagonal, &ri, &ni, &one, a, &lda, b, &ldb);
            return;
        }
    }
    LV_REAL(solve_left)(n, nrhs, a, ars, acs, b, brs, bcs, upper, unit);
}

/* ---------------------------------------------------------------- Cholesky */

#define LV_TILE 32

/* Lower factor of one tile, in place; returns 0 or the order of the leading minor that is not positive. */
LV_NOINLINE int LV_REAL(cholesky_tile)(long n, LV_T *c, long rs, long cs) {
    LV_T w[LV_TILE * LV_TILE]; /* columns, contiguous */
    int info = 0;
    for (long j = 0; j < n; j++)
        for (long i = j; i < n; i++) w[j * LV_TILE + i] = c[i * rs + j * cs];
    for (long j = 0; j < n && !info; j++) {
        LV_T *column = w + j * LV_TILE;
        for (long k = 0; k < j; k++) {
            const LV_T *other = w + k * LV_TILE, factor = -other[j];
            for (long i = j; i < n; i++) column[i] = LV_MATH(fma)(factor, other[i], column[i]);
        }
        if (!(column[j] > 0)) {
            info = (int)(j + 1);
            break;
        }
        column[j] = LV_MATH(sqrt)(column[j]);
        LV_T inverse = 1 / column[j];
        for (long i = j + 1; i < n; i++) column[i] *= inverse;
    }
    for (long j = 0; j < n; j++)
        for (long i = j; i < n; i++) c[i * rs + j * cs] = w[j * LV_TILE + i];
    return info;
}

/* Lower factor with A = L L^T, or upper with A = U^T U; reads that triangle of A and zeroes the other one of `out`.
 * Returns 0 or the order of the leading minor that is not positive definite. */
LV_NOINLINE int LV_REAL(cholesky)(long n, const LV_T *a, long ars, long acs, LV_T *out, long ors, long ocs, int upper) {
    if (upper) { /* U^T is the lower factor. */
        long t = ars;
        ars = acs, acs = t, t = ors, ors = ocs, ocs = t;
    }
    for (long i = 0; i < n; i++) {
        for (long j = 0; j <= i; j++) out[i * ors + j * ocs] = a[i * ars + j * acs];
        for (long j = i + 1; j < n; j++) out[i * ors + j * ocs] = 0;
    }
    int leading, ni = (int)n, info = 0;
    char layout = n > LV_TILE && LV_REAL(blas_potrf) && n <= INT_MAX ? LV_REAL(layout)(n, n, ors, ocs, &leading) : 0;
    if (layout) {
        LV_REAL(blas_potrf)(layout == 'N' ? "L" : "U", &ni, out, &leading, &info);
        for (long i = 0; i < n && !info; i++) /* OpenBLAS reports no NaN. */
            info = out[i * (ors + ocs)] > 0 ? 0 : (int)i + 1;
        return info;
    }
    for (long j = 0; j < n; j += LV_TILE) {
        long width = n - j < LV_TILE ? n - j : LV_TILE, below = n - j - width;
        LV_T *corner = out + j * (ors + ocs), *under = corner + width * ors, *left = out + j * ors;
        LV_T *left_under = left + width * ors;
        /* Subtract the columns to the left; the tile above the diagonal is overwritten here and zeroed again. */
        LV_REAL(mm)(width, width, j, left, ors, ocs, left, ocs, ors, corner, ors, ocs, -1, 1);
        LV_REAL(mm)(below, width, j, left_under, ors, ocs, left, ocs, ors, under, ors, ocs, -1, 1);
        info = LV_REAL(cholesky_tile)(width, corner, ors, ocs);
        for (long r = 0; r < width; r++)
            for (long s = r + 1; s < width; s++) corner[r * ors + s * ocs] = 0;
        if (info) return (int)j + info;
        /* X L^T = B */
        LV_REAL(solve_left)(width, below, corner, ors, ocs, under, ocs, ors, 0, 0);
    }
    return 0;
}

/* ---------------------------------------------------------------- LU */

LV_NOINLINE void LV_REAL(swap_rows)(long columns, LV_T *x, LV_T *y, long cs) {
    for (long j = 0; j < columns; j++) {
        LV_T t = x[j * cs];
        x[j * cs] = y[j * cs], y[j * cs] = t;
    }
}

/* P A = L U in place, for rows x columns of a panel; pivots are 1-based. Returns 0 or the first zero pivot. */
LV_NOINLINE int LV_REAL(lu_panel)(long rows, long columns, LV_T *lu, long rs, long cs, int *pivots) {
    int info = 0;
    for (long j = 0; j < columns; j++) {
        LV_T *corner = lu + j * (rs + cs), *column = lu + j * cs;
        long best = j;
        LV_T size = LV_MATH(abs)(column[j * rs]);
        for (long i = j + 1; i < rows; i++) {
            LV_T value = LV_MATH(abs)(column[i * rs]);
            if (value > size || (value != value && size == size)) size = value, best = i;
        }
        pivots[j] = (int)best + 1;
        if (size == 0) {
            info = info ? info : (int)j + 1;
            continue;
        }
        if (best != j) LV_REAL(swap_rows)(columns, lu + j * rs, lu + best * rs, cs);
        for (long i = j + 1; i < rows; i++) column[i * rs] /= *corner;
        if (cs == 1)
            for (long i = j + 1; i < rows; i++)
                LV_REAL(axpy)(columns - j - 1, -column[i * rs], corner + cs, cs, lu + i * rs + (j + 1) * cs, cs);
        else
            for (long l = j + 1; l < columns; l++)
                LV_REAL(axpy)(rows - j - 1, -lu[j * rs + l * cs], corner + rs, rs, lu + (j + 1) * rs + l * cs, rs);
    }
    return info;
}

/* P A = L U into `lu`; pivots are 1-based as LAPACK's. Returns 0 or the index (from 1) of the first zero pivot. */
LV_NOINLINE int LV_REAL(lu)(long n, const LV_T *a, long ars, long acs, LV_T *lu, long lrs, long lcs, int *pivots) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) lu[i * lrs + j * lcs] = a[i * ars + j * acs];
    int leading, ni = (int)n, info = 0;
    if (n > LV_SMALL && LV_REAL(blas_getrf) && n <= INT_MAX && LV_REAL(layout)(n, n, lrs, lcs, &leading) == 'N') {
        LV_REAL(blas_getrf)(&ni, &ni, lu, &leading, pivots, &info);
        return info;
    }
    for (long j = 0; j < n; j += LV_SMALL) {
        long width = n - j < LV_SMALL ? n - j : LV_SMALL, rest = n - j - width;
        LV_T *corner = lu + j * (lrs + lcs), *under = corner + width * lrs, *right = corner + width * lcs;
        int failed = LV_REAL(lu_panel)(n - j, width, corner, lrs, lcs, pivots + j);
        if (failed && !info) info = (int)j + failed;
        for (long k = j; k < j + width; k++) {
            pivots[k] += (int)j;
            long other = pivots[k] - 1;
            if (other == k) continue;
            LV_REAL(swap_rows)(j, lu + k * lrs, lu + other * lrs, lcs);
            LV_REAL(swap_rows)(rest, lu + k * lrs + (j + width) * lcs, lu + other * lrs + (j + width) * lcs, lcs);
        }
        LV_REAL(solve_left)(width, rest, corner, lrs, lcs, right, lrs, lcs, 0, 1);
        LV_REAL(mm)(rest, rest, width, under, lrs, lcs, right, lrs, lcs, under + width * lcs, lrs, lcs, -1, 1);
    }
    return info;
}

/* B <- op(A)^-1 B (left) or B op(A)^-1 for A = P^T L U; B has nrhs columns (left) or rows. */
LV_NOINLINE void LV_REAL(lu_solve)(long n, long nrhs, const LV_T *lu, long lrs, long lcs, const int *pivots, LV_T *b,
                               long brs, long bcs, int left, int transpose) {
    if (!left) {
        long t = brs;
        brs = bcs, bcs = t, transpose = !transpose;
    }
    if (!transpose) {
        for (long i = 0; i < n; i++)
            if (pivots[i] - 1 != i) LV_REAL(swap_rows)(nrhs, b + i * brs, b + (pivots[i] - 1) * brs, bcs);
        LV_REAL(trsolve)(n, nrhs, lu, lrs, lcs, b, brs, bcs, 0, 0, 1, 1);
        LV_REAL(trsolve)(n, nrhs, lu, lrs, lcs, b, brs, bcs, 1, 0, 1, 0);
    } else {
        LV_REAL(trsolve)(n, nrhs, lu, lrs, lcs, b, brs, bcs, 1, 1, 1, 0);
        LV_REAL(trsolve)(n, nrhs, lu, lrs, lcs, b, brs, bcs, 0, 1, 1, 1);
        for (long i = n - 1; i >= 0; i--)
            if (pivots[i] - 1 != i) LV_REAL(swap_rows)(nrhs, b + i * brs, b + (pivots[i] - 1) * brs, bcs);
    }
}

/* The sign of the determinant; its log absolute value in `logabs`. */
LV_NOINLINE LV_T LV_REAL(slogdet_from_lu)(long n, const LV_T *lu, long lrs, long lcs, const int *pivots, LV_T *logabs) {
    LV_T sign = 1, total = 0;
    for (long i = 0; i < n; i++) {
        LV_T d = lu[i * (lrs + lcs)];
        total += LV_MATH(log)(LV_MATH(abs)(d));
        sign *= pivots[i] - 1 != i ? -1 : 1;
        sign *= d != d ? d : LV_MATH(sign)(d);
    }
    *logabs = total;
    return sign;
}

#undef LV_WIDTH
#undef LV_BLAS_PRODUCTS
#undef LV_BLAS_SIDE
#undef LV_DEPTH
#undef LV_ROWS
#undef LV_SMALL
#undef LV_TILE
