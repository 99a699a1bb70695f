/* Elementary and special functions for generated loops.
 *
 * `lv_NAME` takes double, `lv_NAMEf` takes float. Functions marked "vector" are branch-free: selects, integer
 * operations on bits and explicit fma. Compilers vectorise loops over them, and an element has the same bits in
 * vector code, in the scalar remainder of a loop and outside a loop. Requires C11 and IEEE arithmetic without
 * -ffast-math; -fno-trapping-math lets compilers turn selects into vector blends.
 *
 * Polynomials interpolate at Chebyshev nodes; the named sources hold for the others.
 * Accuracy is in units in the last place (ulp); tests/test_native_math.py measures it.
 */
#ifndef LV_MATH_H
#define LV_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LV_FN static inline __attribute__((always_inline, unused))

/* ---------------------------------------------------------------- bits and rounding */

LV_FN uint64_t lv_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LV_FN double lv_double(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

LV_FN uint32_t lv_bitsf(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LV_FN float lv_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define LV_INF __builtin_inf()
#define LV_NAN __builtin_nan("")
#define LV_INFF __builtin_inff()
#define LV_NANF __builtin_nanf("")

LV_FN double lv_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
LV_FN float lv_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LV_FN double lv_abs(double x) { return __builtin_fabs(x); }
LV_FN float lv_absf(float x) { return __builtin_fabsf(x); }
LV_FN double lv_sqrt(double x) { return __builtin_sqrt(x); }
LV_FN float lv_sqrtf(float x) { return __builtin_sqrtf(x); }
LV_FN double lv_floor(double x) { return __builtin_floor(x); }
LV_FN float lv_floorf(float x) { return __builtin_floorf(x); }
/* Half to even, in the default rounding mode. */
LV_FN double lv_round(double x) { return __builtin_rint(x); }
LV_FN float lv_roundf(float x) { return __builtin_rintf(x); }

LV_FN double lv_copysign(double x, double s) {
    return lv_double((lv_bits(x) & 0x7fffffffffffffffu) | (lv_bits(s) & 0x8000000000000000u));
}
LV_FN float lv_copysignf(float x, float s) {
    return lv_float((lv_bitsf(x) & 0x7fffffffu) | (lv_bitsf(s) & 0x80000000u));
}

/* ---------------------------------------------------------------- exponential family */

/* 1.5 * 2^52: adding it rounds a double to an integer, which the sum then has in its lowest bits. */
#define LV_MAGIC 0x1.8p52
#define LV_MAGICF 0x1.8p23f
#define LV_LN2_HI 0x1.62e42fefa39efp-1
#define LV_LN2_LO 0x1.abc9e3b39803fp-56
#define LV_LN2_HIF 0x1.62e430p-1f
#define LV_LN2_LOF -0x1.05c610p-29f

/* (e^r - 1 - r) / r^2 for |r| <= log(2) / 2, to 2^-57. */
LV_FN double lv_exp_poly(double r) {
    double q = 0x1.1f731ea5352cap-29;
    q = lv_fma(q, r, 0x1.af4e196027428p-26);
    q = lv_fma(q, r, 0x1.27e4db57442fbp-22);
    q = lv_fma(q, r, 0x1.71de021a90822p-19);
    q = lv_fma(q, r, 0x1.a01a01a6dcaffp-16);
    q = lv_fma(q, r, 0x1.a01a01abef415p-13);
    q = lv_fma(q, r, 0x1.6c16c16c162ccp-10);
    q = lv_fma(q, r, 0x1.11111111100cep-7);
    q = lv_fma(q, r, 0x1.5555555555556p-5);
    q = lv_fma(q, r, 0x1.5555555555557p-3);
    return lv_fma(q, r, 0.5);
}

LV_FN float lv_exp_polyf(float r) {
    float q = 0x1.a125285dbcbf1p-13f;
    q = lv_fmaf(q, r, 0x1.6d4362097d81ap-10f);
    q = lv_fmaf(q, r, 0x1.1110e0de7be2bp-7f);
    q = lv_fmaf(q, r, 0x1.5554e8d9c7d96p-5f);
    q = lv_fmaf(q, r, 0x1.5555555a7c16bp-3f);
    return lv_fmaf(q, r, 0x1.0000000b9847ep-1f);
}

/* p * 2^n for an integer n (as a double) in [-2044, 2046]: two factors, so that subnormals round once. */
LV_FN double lv_scale(double p, double n) {
    double t = lv_fma(n, 0.5, LV_MAGIC), half = t - LV_MAGIC, u = (n - half) + LV_MAGIC;
    return p * lv_double((lv_bits(t) + 1023u) << 52) * lv_double((lv_bits(u) + 1023u) << 52);
}

LV_FN float lv_scalef(float p, float n) {
    float t = lv_fmaf(n, 0.5f, LV_MAGICF), half = t - LV_MAGICF, u = (n - half) + LV_MAGICF;
    return p * lv_float((lv_bitsf(t) + 127u) << 23) * lv_float((lv_bitsf(u) + 127u) << 23);
}

/* 2^k e^(x + tail), |tail| tiny against 1. */
LV_FN double lv_exp_scaled(double x, double tail, double k) {
    x = x > 720.0 ? 720.0 : x;
    x = x < -760.0 ? -760.0 : x;
    double t = lv_fma(x, 0x1.71547652b82fep+0, LV_MAGIC), n = t - LV_MAGIC;
    double r = lv_fma(-n, LV_LN2_LO, lv_fma(-n, LV_LN2_HI, x) + tail);
    return lv_scale(1.0 + lv_fma(r * r, lv_exp_poly(r), r), n + k);
}

LV_FN float lv_exp_scaledf(float x, float tail, float k) {
    x = x > 95.0f ? 95.0f : x;
    x = x < -110.0f ? -110.0f : x;
    float t = lv_fmaf(x, 0x1.715476p+0f, LV_MAGICF), n = t - LV_MAGICF;
    float r = lv_fmaf(-n, LV_LN2_LOF, lv_fmaf(-n, LV_LN2_HIF, x) + tail);
    return lv_scalef(1.0f + lv_fmaf(r * r, lv_exp_polyf(r), r), n + k);
}

/* vector, < 1 ulp */
LV_FN double lv_exp(double x) { return lv_exp_scaled(x, 0.0, 0.0); }
LV_FN float lv_expf(float x) { return lv_exp_scaledf(x, 0.0f, 0.0f); }

/* vector, 1 ulp */
LV_FN double lv_exp2(double x) {
    double c = x > 1100.0 ? 1100.0 : x;
    c = c < -1100.0 ? -1100.0 : c;
    double n = (c + LV_MAGIC) - LV_MAGIC, f = c - n, r = f * LV_LN2_HI;
    r = r + lv_fma(f, LV_LN2_LO, lv_fma(f, LV_LN2_HI, -r));
    return lv_scale(1.0 + lv_fma(r * r, lv_exp_poly(r), r), n);
}

LV_FN float lv_exp2f(float x) {
    float c = x > 150.0f ? 150.0f : x;
    c = c < -160.0f ? -160.0f : c;
    float n = (c + LV_MAGICF) - LV_MAGICF, f = c - n, r = f * LV_LN2_HIF;
    r = r + lv_fmaf(f, LV_LN2_LOF, lv_fmaf(f, LV_LN2_HIF, -r));
    return lv_scalef(1.0f + lv_fmaf(r * r, lv_exp_polyf(r), r), n);
}

/* (e^x - 1) / 4; a quarter so that sinh can use it where e^x overflows. */
LV_FN double lv_expm1_quarter(double x) {
    double c = x > 710.6 ? 710.6 : x;
    c = c < -60.0 ? -60.0 : c;
    double t = lv_fma(c, 0x1.71547652b82fep+0, LV_MAGIC), n = t - LV_MAGIC;
    double high = lv_fma(-n, LV_LN2_HI, c), r = lv_fma(-n, LV_LN2_LO, high);
    double low = lv_fma(-n, LV_LN2_LO, high - r);
    double p = lv_fma(r * r, lv_exp_poly(r), low), s = lv_double((lv_bits(t) + 1021u) << 52), base = s - 0.25;
    /* base + s r is added with its rounding error. */
    double sum = lv_fma(s, r, base), error = lv_fma(s, r, base - sum);
    return sum + lv_fma(s, p, error);
}

LV_FN float lv_expm1_quarterf(float x) {
    float c = x > 89.6f ? 89.6f : x;
    c = c < -30.0f ? -30.0f : c;
    float t = lv_fmaf(c, 0x1.715476p+0f, LV_MAGICF), n = t - LV_MAGICF;
    float high = lv_fmaf(-n, LV_LN2_HIF, c), r = lv_fmaf(-n, LV_LN2_LOF, high);
    float low = lv_fmaf(-n, LV_LN2_LOF, high - r);
    float p = lv_fmaf(r * r, lv_exp_polyf(r), low), s = lv_float((lv_bitsf(t) + 125u) << 23), base = s - 0.25f;
    float sum = lv_fmaf(s, r, base), error = lv_fmaf(s, r, base - sum);
    return sum + lv_fmaf(s, p, error);
}

/* vector, 1 ulp */
LV_FN double lv_expm1(double x) {
    double y = lv_expm1_quarter(x) * 4.0;
    return lv_abs(x) < 0x1p-54 ? x : y;
}

LV_FN float lv_expm1f(float x) {
    float y = lv_expm1_quarterf(x) * 4.0f;
    return lv_absf(x) < 0x1p-25f ? x : y;
}

/* ---------------------------------------------------------------- logarithms */

/* x = 2^k m with m in [sqrt(1/2), sqrt(2)), for normal x > 0. */
LV_FN double lv_mantissa(double x, double *k) {
    uint64_t u = lv_bits(x) + (0x3ff0000000000000u - 0x3fe6a09e00000000u);
    *k = lv_double((u >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
    return lv_double((u & 0x000fffffffffffffu) + 0x3fe6a09e00000000u);
}

LV_FN float lv_mantissaf(float x, float *k) {
    uint32_t u = lv_bitsf(x) + (0x3f800000u - 0x3f3504f3u);
    *k = lv_float((u >> 23) | 0x4b000000u) - (0x1p23f + 127.0f);
    return lv_float((u & 0x007fffffu) + 0x3f3504f3u);
}

/* log(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + R)); returns the bracket. Coefficients of FreeBSD's e_log.c. */
LV_FN double lv_log_tail(double f) {
    double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s;
    double r = 1.479819860511658591e-01;
    r = lv_fma(r, z, 1.531383769920937332e-01);
    r = lv_fma(r, z, 1.818357216161805012e-01);
    r = lv_fma(r, z, 2.222219843214978396e-01);
    r = lv_fma(r, z, 2.857142874366239149e-01);
    r = lv_fma(r, z, 3.999999999940941908e-01);
    r = lv_fma(r, z, 6.666666666666735130e-01);
    return lv_fma(-s, lv_fma(r, z, half), half);
}

LV_FN float lv_log_tailf(float f) {
    float half = 0.5f * f * f, s = f / (2.0f + f), z = s * s;
    float r = 0.24279078841f;
    r = lv_fmaf(r, z, 0.28498786688f);
    r = lv_fmaf(r, z, 0.40000972152f);
    r = lv_fmaf(r, z, 0.66666662693f);
    return lv_fmaf(-s, lv_fmaf(r, z, half), half);
}

#define LV_LOG_SPECIAL(x, y) ((x) > 0.0 ? ((x) < LV_INF ? (y) : (x)) : ((x) == 0.0 ? -LV_INF : LV_NAN))
#define LV_LOG_SPECIALF(x, y) ((x) > 0.0f ? ((x) < LV_INFF ? (y) : (x)) : ((x) == 0.0f ? -LV_INFF : LV_NANF))

/* vector, < 1 ulp */
LV_FN double lv_log(double x) {
    double k, m = lv_mantissa(x < 0x1p-1022 ? x * 0x1p54 : x, &k), f = m - 1.0;
    k = x < 0x1p-1022 ? k - 54.0 : k;
    double y = lv_fma(k, LV_LN2_HI, f - lv_fma(-k, LV_LN2_LO, lv_log_tail(f)));
    return LV_LOG_SPECIAL(x, y);
}

LV_FN float lv_logf(float x) {
    float k, m = lv_mantissaf(x < 0x1p-126f ? x * 0x1p25f : x, &k), f = m - 1.0f;
    k = x < 0x1p-126f ? k - 25.0f : k;
    float y = lv_fmaf(k, LV_LN2_HIF, f - lv_fmaf(-k, LV_LN2_LOF, lv_log_tailf(f)));
    return LV_LOG_SPECIALF(x, y);
}

/* vector, 1-2 ulp; powers of two are exact */
LV_FN double lv_log2(double x) {
    double k, m = lv_mantissa(x < 0x1p-1022 ? x * 0x1p54 : x, &k), f = m - 1.0;
    k = x < 0x1p-1022 ? k - 54.0 : k;
    double l = f - lv_log_tail(f);
    double y = lv_fma(l, 0x1.71547652b82fep+0, lv_fma(l, 0x1.777d0ffda0d24p-56, k));
    return LV_LOG_SPECIAL(x, y);
}

LV_FN float lv_log2f(float x) {
    float k, m = lv_mantissaf(x < 0x1p-126f ? x * 0x1p25f : x, &k), f = m - 1.0f;
    k = x < 0x1p-126f ? k - 25.0f : k;
    float l = f - lv_log_tailf(f);
    float y = lv_fmaf(l, 0x1.715476p+0f, lv_fmaf(l, 0x1.4ae0bep-26f, k));
    return LV_LOG_SPECIALF(x, y);
}

LV_FN double lv_log10(double x) {
    double k, m = lv_mantissa(x < 0x1p-1022 ? x * 0x1p54 : x, &k), f = m - 1.0;
    k = x < 0x1p-1022 ? k - 54.0 : k;
    double l = f - lv_log_tail(f);
    double small = lv_fma(l, 0x1.bcb7b1526e50ep-2, lv_fma(l, 0x1.95355baaafad3p-57, k * -0x1.9dc1da994fd21p-59));
    double y = lv_fma(k, 0x1.34413509f79ffp-2, small);
    return LV_LOG_SPECIAL(x, y);
}

LV_FN float lv_log10f(float x) {
    float k, m = lv_mantissaf(x < 0x1p-126f ? x * 0x1p25f : x, &k), f = m - 1.0f;
    k = x < 0x1p-126f ? k - 25.0f : k;
    float l = f - lv_log_tailf(f);
    float small = lv_fmaf(l, 0x1.bcb7b2p-2f, lv_fmaf(l, -0x1.5b235ep-27f, k * -0x1.ec10c0p-27f));
    float y = lv_fmaf(k, 0x1.344136p-2f, small);
    return LV_LOG_SPECIALF(x, y);
}

/* vector, 1 ulp: 1 + x = u + e exactly; e is scaled as the mantissa of u and added to it. */
LV_FN double lv_log1p(double x) {
    double u = 1.0 + x, back = u - 1.0, e = (1.0 - (u - back)) + (x - back), k;
    double f = lv_mantissa(u, &k) - 1.0, c = k > 1000.0 ? 1000.0 : k;
    double d = e * lv_double((lv_bits(LV_MAGIC - c) + 1023u) << 52);
    double g = f + d, low = d - (g - f);
    double tail = lv_log_tail(g) - lv_fma(-low, g, low);
    double y = lv_fma(k, LV_LN2_HI, g - lv_fma(-k, LV_LN2_LO, tail));
    y = lv_abs(x) < 0x1p-54 ? x : y;
    return x > -1.0 ? (x < LV_INF ? y : x) : (x == -1.0 ? -LV_INF : LV_NAN);
}

LV_FN float lv_log1pf(float x) {
    float u = 1.0f + x, back = u - 1.0f, e = (1.0f - (u - back)) + (x - back), k;
    float f = lv_mantissaf(u, &k) - 1.0f, c = k > 100.0f ? 100.0f : k;
    float d = e * lv_float((lv_bitsf(LV_MAGICF - c) + 127u) << 23);
    float g = f + d, low = d - (g - f);
    float tail = lv_log_tailf(g) - lv_fmaf(-low, g, low);
    float y = lv_fmaf(k, LV_LN2_HIF, g - lv_fmaf(-k, LV_LN2_LOF, tail));
    y = lv_absf(x) < 0x1p-25f ? x : y;
    return x > -1.0f ? (x < LV_INFF ? y : x) : (x == -1.0f ? -LV_INFF : LV_NANF);
}

/* ---------------------------------------------------------------- hyperbolic and logistic */

/* vector, 2-3 ulp */
LV_FN double lv_tanh(double x) {
    double t = lv_expm1_quarter(-2.0 * lv_abs(x)), y = -t / (t + 0.5);
    return lv_abs(x) < 0x1p-28 ? x : lv_copysign(y, x);
}
LV_FN float lv_tanhf(float x) {
    float t = lv_expm1_quarterf(-2.0f * lv_absf(x)), y = -t / (t + 0.5f);
    return lv_absf(x) < 0x1p-13f ? x : lv_copysignf(y, x);
}

LV_FN double lv_sinh(double x) {
    double a = lv_abs(x), t = lv_expm1_quarter(a) * 2.0, y = t + t / lv_fma(2.0, t, 1.0);
    return a < 0x1p-28 ? x : lv_copysign(t < LV_INF ? y : t, x);
}
LV_FN float lv_sinhf(float x) {
    float a = lv_absf(x), t = lv_expm1_quarterf(a) * 2.0f, y = t + t / lv_fmaf(2.0f, t, 1.0f);
    return a < 0x1p-13f ? x : lv_copysignf(t < LV_INFF ? y : t, x);
}

LV_FN double lv_cosh(double x) {
    double h = lv_exp_scaled(lv_abs(x), 0.0, -1.0);
    return h + 0.25 / h;
}
LV_FN float lv_coshf(float x) {
    float h = lv_exp_scaledf(lv_absf(x), 0.0f, -1.0f);
    return h + 0.25f / h;
}

/* vector, 2 ulp, also where the result is subnormal */
LV_FN double lv_sigmoid(double x) {
    double e = lv_exp(-lv_abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
LV_FN float lv_sigmoidf(float x) {
    float e = lv_expf(-lv_absf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* log(1 + e^x) */
LV_FN double lv_softplus(double x) { return (x < 0.0 ? 0.0 : x) + lv_log1p(lv_exp(-lv_abs(x))); }
LV_FN float lv_softplusf(float x) { return (x < 0.0f ? 0.0f : x) + lv_log1pf(lv_expf(-lv_absf(x))); }
LV_FN double lv_log_sigmoid(double x) { return (x < 0.0 ? x : 0.0) - lv_log1p(lv_exp(-lv_abs(x))); }
LV_FN float lv_log_sigmoidf(float x) { return (x < 0.0f ? x : 0.0f) - lv_log1pf(lv_expf(-lv_absf(x))); }

/* NaN propagates; equal infinities give themselves. */
LV_FN double lv_logaddexp(double a, double b) {
    double m = a > b ? a : b, y = m + lv_log1p(lv_exp(-lv_abs(a - b)));
    return a == b && lv_abs(a) == LV_INF ? a : y;
}
LV_FN float lv_logaddexpf(float a, float b) {
    float m = a > b ? a : b, y = m + lv_log1pf(lv_expf(-lv_absf(a - b)));
    return a == b && lv_absf(a) == LV_INFF ? a : y;
}

LV_FN double lv_xlogy(double x, double y) { return x == 0.0 ? (y != y ? y : 0.0) : x * lv_log(y); }
LV_FN float lv_xlogyf(float x, float y) { return x == 0.0f ? (y != y ? y : 0.0f) : x * lv_logf(y); }
LV_FN double lv_xlog1py(double x, double y) { return x == 0.0 ? (y != y ? y : 0.0) : x * lv_log1p(y); }
LV_FN float lv_xlog1pyf(float x, float y) { return x == 0.0f ? (y != y ? y : 0.0f) : x * lv_log1pf(y); }

/* -x log x, as torch.special.entr */
LV_FN double lv_entr(double x) { return x != x ? x : (x > 0.0 ? -x * lv_log(x) : (x == 0.0 ? 0.0 : -LV_INF)); }
LV_FN float lv_entrf(float x) { return x != x ? x : (x > 0.0f ? -x * lv_logf(x) : (x == 0.0f ? 0.0f : -LV_INFF)); }

/* log(x / (1 - x)) */

/* ---------------------------------------------------------------- normal distribution */

/* e^(a^2) erfc(a), 0 <= a < inf: (1 + 2a) times it is a polynomial in (a - 4) / (a + 4). */
LV_FN double lv_erfcx_positive(double a) {
    double t = (a - 4.0) / (a + 4.0);
    double p = 0x1.0967e527911a9p-30;
    p = lv_fma(p, t, 0x1.afe473b552685p-30);
    p = lv_fma(p, t, -0x1.af097381d257bp-27);
    p = lv_fma(p, t, -0x1.1904891a069b4p-26);
    p = lv_fma(p, t, 0x1.cad9b27d6d663p-24);
    p = lv_fma(p, t, 0x1.31744dd9b56d0p-24);
    p = lv_fma(p, t, -0x1.b9339da7bf70bp-21);
    p = lv_fma(p, t, 0x1.400a0021a32f1p-22);
    p = lv_fma(p, t, 0x1.7f01a118598aep-18);
    p = lv_fma(p, t, -0x1.78a738afaf645p-17);
    p = lv_fma(p, t, -0x1.99551e5f87e20p-16);
    p = lv_fma(p, t, 0x1.3be12bafabe1fp-13);
    p = lv_fma(p, t, -0x1.a1df4a1e543bcp-13);
    p = lv_fma(p, t, -0x1.8d4aaa8fbedbcp-11);
    p = lv_fma(p, t, 0x1.49c672b9685cep-8);
    p = lv_fma(p, t, -0x1.0962386da3254p-6);
    p = lv_fma(p, t, 0x1.3079edf5d9d05p-5);
    p = lv_fma(p, t, -0x1.0fb06dfee4790p-4);
    p = lv_fma(p, t, 0x1.7fee004e16d41p-4);
    p = lv_fma(p, t, -0x1.9ddb23c3e0c24p-4);
    p = lv_fma(p, t, 0x1.16ecefcfa5214p-4);
    p = lv_fma(p, t, 0x1.f7f5df66fc17fp-7);
    p = lv_fma(p, t, -0x1.1df1ad154a28ep-3);
    p = lv_fma(p, t, 0x1.3ba5916e9fd7fp+0);
    return p / lv_fma(2.0, a, 1.0);
}

/* erfc(a), 0 <= a; the exponent keeps the rounding error of a^2. */
LV_FN double lv_erfc_positive(double a) {
    a = a > 30.0 ? 30.0 : a;
    double square = a * a, error = lv_fma(a, a, -square);
    return lv_exp_scaled(-square, -error, 0.0) * lv_erfcx_positive(a);
}

/* erf(x), |x| <= 1 */
LV_FN double lv_erf_small(double x) {
    double z = x * x;
    double p = 0x1.05ffd737fb32ep-34;
    p = lv_fma(p, z, -0x1.389d4f2641625p-30);
    p = lv_fma(p, z, 0x1.f7b4bf3b13964p-27);
    p = lv_fma(p, z, -0x1.5f1ecb6f0764cp-23);
    p = lv_fma(p, z, 0x1.b9df224ca4b97p-20);
    p = lv_fma(p, z, -0x1.f4d1e3183f7aep-17);
    p = lv_fma(p, z, 0x1.f9a321d5b8e1ep-14);
    p = lv_fma(p, z, -0x1.c02db3dac435fp-11);
    p = lv_fma(p, z, 0x1.565bcd0dbaa38p-8);
    p = lv_fma(p, z, -0x1.b82ce31284e00p-6);
    p = lv_fma(p, z, 0x1.ce2f21a042b30p-4);
    p = lv_fma(p, z, -0x1.812746b0379e6p-2);
    return x * lv_fma(p, z, 0x1.20dd750429b6dp+0);
}

/* vector, 1-2 ulp */
LV_FN double lv_erf(double x) {
    double a = lv_abs(x), large = 1.0 - lv_erfc_positive(a);
    return a < 1.0 ? lv_erf_small(x) : lv_copysign(large, x);
}

/* vector, 3 ulp */
LV_FN double lv_erfc(double x) {
    double y = lv_erfc_positive(lv_abs(x));
    return x < 0.0 ? 2.0 - y : y;
}

/* Normal distribution function; the tail keeps its relative accuracy. vector */
LV_FN double lv_ndtr(double x) {
    double a = lv_abs(x);
    a = a > 40.0 ? 40.0 : a;
    double square = a * a, error = lv_fma(a, a, -square), half = 0.5 * lv_erfcx_positive(a * 0x1.6a09e667f3bcdp-1);
    double y = lv_exp_scaled(-0.5 * square, -0.5 * error, 0.0) * half;
    return x > 0.0 ? 1.0 - y : y;
}

LV_FN double lv_log_ndtr(double x) {
    double a = lv_abs(x), near = a > 40.0 ? 40.0 : a;
    a = a > 1e150 ? 1e150 : a;
    double half = 0.5 * lv_erfcx_positive(a * 0x1.6a09e667f3bcdp-1);
    double square = near * near, error = lv_fma(near, near, -square);
    double y = lv_exp_scaled(-0.5 * square, -0.5 * error, 0.0) * half;
    double center = lv_log1p(x > 0.0 ? -y : y - 1.0), left = lv_fma(-0.5 * x, x, lv_log(half));
    return x < -1.0 ? left : (x != x ? x : center);
}

/* Normal quantile of 1/2 + q, where small = 1/2 - |q| exactly. Wichura's AS 241. */
LV_FN double lv_quantile(double q, double small) {
    double r = lv_sqrt(-lv_log(small)), z = lv_fma(-q, q, 0.180625);
    int central = lv_abs(q) <= 0.425, far = r > 5.0;
    double t = central ? z : (far ? r - 5.0 : r - 1.6);
#define LV_PICK(a, c, e) (central ? (a) : (far ? (e) : (c)))
    double p = LV_PICK(2.5090809287301226727e+3, 7.74545014278341407640e-4, 2.01033439929228813265e-7);
    p = lv_fma(p, t, LV_PICK(3.3430575583588128105e+4, 2.27238449892691845833e-2, 2.71155556874348757815e-5));
    p = lv_fma(p, t, LV_PICK(6.7265770927008700853e+4, 2.41780725177450611770e-1, 1.24266094738807843860e-3));
    p = lv_fma(p, t, LV_PICK(4.5921953931549871457e+4, 1.27045825245236838258e+0, 2.65321895265761230930e-2));
    p = lv_fma(p, t, LV_PICK(1.3731693765509461125e+4, 3.64784832476320460504e+0, 2.96560571828504891230e-1));
    p = lv_fma(p, t, LV_PICK(1.9715909503065514427e+3, 5.76949722146069140550e+0, 1.78482653991729133580e+0));
    p = lv_fma(p, t, LV_PICK(1.3314166789178437745e+2, 4.63033784615654529590e+0, 5.46378491116411436990e+0));
    p = lv_fma(p, t, LV_PICK(3.3871328727963666080e+0, 1.42343711074968357734e+0, 6.65790464350110377720e+0));
    double d = LV_PICK(5.2264952788528545610e+3, 1.05075007164441684324e-9, 2.04426310338993978564e-15);
    d = lv_fma(d, t, LV_PICK(2.8729085735721942674e+4, 5.47593808499534494600e-4, 1.42151175831644588870e-7));
    d = lv_fma(d, t, LV_PICK(3.9307895800092710610e+4, 1.51986665636164571966e-2, 1.84631831751005468180e-5));
    d = lv_fma(d, t, LV_PICK(2.1213794301586595867e+4, 1.48103976427480074590e-1, 7.86869131145613259100e-4));
    d = lv_fma(d, t, LV_PICK(5.3941960214247511077e+3, 6.89767334985100004550e-1, 1.48753612908506148525e-2));
    d = lv_fma(d, t, LV_PICK(6.8718700749205790830e+2, 1.67638483018380384940e+0, 1.36929880922735805310e-1));
    d = lv_fma(d, t, LV_PICK(4.2313330701600911252e+1, 2.05319162663775882187e+0, 5.99832206555887937690e-1));
#undef LV_PICK
    double y = (central ? q : 1.0) * p / lv_fma(d, t, 1.0);
    return central ? y : lv_copysign(y, q);
}

LV_FN double lv_ndtri(double p) {
    double y = lv_quantile(p - 0.5, p < 0.5 ? p : 1.0 - p);
    return p > 0.0 ? (p < 1.0 ? y : (p == 1.0 ? LV_INF : LV_NAN)) : (p == 0.0 ? -LV_INF : LV_NAN);
}

LV_FN double lv_erfinv(double x) {
    double a = lv_abs(x), y = lv_quantile(0.5 * x, 0.5 - 0.5 * a) * 0x1.6a09e667f3bcdp-1;
    return a < 1.0 ? y : (a == 1.0 ? lv_copysign(LV_INF, x) : LV_NAN);
}

/* x ndtr(x), and the form with tanh: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) */

/* ---------------------------------------------------------------- gamma functions */

/* sin(pi x) / pi, |x| <= 1/2 */
LV_FN double lv_sinpi_over_pi(double x) {
    double z = x * x;
    double p = 0x1.9d462020fcc78p-21;
    p = lv_fma(p, z, -0x1.6f7acdb8f6580p-16);
    p = lv_fma(p, z, 0x1.e8f3675ee37ddp-12);
    p = lv_fma(p, z, -0x1.e3074dfaf87afp-8);
    p = lv_fma(p, z, 0x1.5078348551854p-4);
    p = lv_fma(p, z, -0x1.32d2cce627c86p-1);
    p = lv_fma(p, z, 0x1.466bc6775aa7dp+1);
    p = lv_fma(p, z, -0x1.4abbce625be52p+2);
    p = lv_fma(p, z, 0x1.921fb54442d18p+1);
    return x * (p * 0x1.45f306dc9c883p-2);
}

/* log |Gamma(x)|; vector. Relative accuracy for x > 0, absolute near the zeros of negative x. */
LV_FN double lv_lgamma(double x) {
    double a = lv_abs(x);
    int large = a >= 7.0, tiny = a < 0.7;
    /* z in [0.7, 2.7] differs from a by an integer. */
    double z = tiny ? a + 2.0 : a, product = tiny ? (x < 0.0 ? a + 1.0 : a * (a + 1.0)) : 1.0;
    for (int i = 1; i <= 5; i++) {
        product *= a >= i + 1.7 ? a - i : 1.0;
        z -= a >= i + 1.7 ? 1.0 : 0.0;
    }
    double l = lv_log(large ? a : product), c = z - 0.5;
    double p = 1.0320976425529818e-06;
    p = lv_fma(p, c, 0.0007225679359172502);
    p = lv_fma(p, c, 0.03262875204642777);
    p = lv_fma(p, c, 0.4543370729810646);
    p = lv_fma(p, c, 2.7190743886401627);
    p = lv_fma(p, c, 8.082679087686834);
    p = lv_fma(p, c, 12.747065152366163);
    p = lv_fma(p, c, 10.768090320003665);
    p = lv_fma(p, c, 4.572870329828602);
    p = lv_fma(p, c, 0.7631532572304568);
    double q = 0.00017183836175495434;
    q = lv_fma(q, c, 0.01224575704064407);
    q = lv_fma(q, c, 0.24698374470323692);
    q = lv_fma(q, c, 2.0930147351211943);
    q = lv_fma(q, c, 8.818166399832341);
    q = lv_fma(q, c, 20.104782495631554);
    q = lv_fma(q, c, 25.723469685711283);
    q = lv_fma(q, c, 18.32993344355304);
    q = lv_fma(q, c, 6.755927851032166);
    q = lv_fma(q, c, 1.0);
    double small = lv_fma((z - 1.0) * (z - 2.0), p / q, tiny ? -l : l);
    /* Stirling's series */
    double v = 1.0 / a, w = v * v;
    double s = 0x1.36af86a921827p-8;
    s = lv_fma(s, w, -0x1.eb54445db0d1ap-10);
    s = lv_fma(s, w, 0x1.b9041c7766949p-11);
    s = lv_fma(s, w, -0x1.3812f5ec62d53p-11);
    s = lv_fma(s, w, 0x1.a01a0128389ebp-11);
    s = lv_fma(s, w, -0x1.6c16c16c0d06dp-9);
    s = lv_fma(s, w, 0x1.5555555555555p-4);
    double stirling = lv_fma(a - 0.5, l - 1.0, lv_fma(s, v, 0.41893853320467274178));
    double y = large ? stirling : small;
    /* Gamma(x) Gamma(-x) = -pi / (x sin(pi x)); for tiny x the factor x cancels. */
    double sine = lv_abs(lv_sinpi_over_pi(a - lv_round(a))), mirror = -lv_log(tiny ? sine : a * sine) - y;
    y = x < 0.0 ? mirror : y;
    y = x <= 0.0 && sine == 0.0 ? LV_INF : y; /* poles */
    return a == LV_INF ? a : y;
}

/* Eight steps of the recurrence as one fraction, then the asymptotic series; vector.
 * As torch: NaN at negative integers, copysign(inf, -x) at 0. */
LV_FN double lv_digamma(double x) {
    double a = x < 0.0 ? 1.0 - x : x;
    int shift = a < 8.0;
    double numerator = 0.0, denominator = 1.0, y = shift ? a : 1.0;
    for (int i = 0; i < 8; i++) {
        numerator = lv_fma(numerator, y + i, denominator);
        denominator *= y + i;
    }
    y = shift ? a + 8.0 : a;
    double v = 1.0 / y, w = v * v;
    double s = -0x1.329c9079bcef2p-2;
    s = lv_fma(s, w, 0x1.47c69710dec6fp-4);
    s = lv_fma(s, w, -0x1.58e68c895ad5bp-6);
    s = lv_fma(s, w, 0x1.f077209c326c0p-8);
    s = lv_fma(s, w, -0x1.11110c0ff8839p-8);
    s = lv_fma(s, w, 0x1.0410410195bbfp-8);
    s = lv_fma(s, w, -0x1.1111111110d4fp-7);
    s = lv_fma(s, w, 0x1.5555555555555p-4);
    double series = lv_log(y) - lv_fma(s, w, 0.5 * v);
    double r = shift ? series - numerator / denominator : series;
    /* digamma(x) = digamma(1 - x) - pi cot(pi x) */
    double b = x - lv_round(x), cosine = lv_sinpi_over_pi(0.5 - lv_abs(b));
    double mirror = r - 0x1.921fb54442d18p+1 * (cosine / lv_sinpi_over_pi(b));
    r = x < 0.0 ? (b == 0.0 ? LV_NAN : mirror) : r;
    return x == 0.0 ? lv_copysign(LV_INF, -x) : (x == LV_INF ? x : r);
}

/* The second derivative of lgamma; vector. */
LV_FN double lv_trigamma(double x) {
    double a = x < 0.0 ? 1.0 - x : x;
    int shift = a < 8.0;
    double numerator = 0.0, denominator = 1.0, y = shift ? a : 1.0;
    for (int i = 1; i < 8; i++) {
        double square = (y + i) * (y + i);
        numerator = lv_fma(numerator, square, denominator);
        denominator *= square;
    }
    double steps = numerator / denominator + 1.0 / (y * y);
    y = shift ? a + 8.0 : a;
    double v = 1.0 / y, w = v * v;
    double s = -0x1.24d1c876e87ffp+2;
    s = lv_fma(s, w, 0x1.1bff07a3b5495p+0);
    s = lv_fma(s, w, -0x1.0273c0acea2e4p-2);
    s = lv_fma(s, w, 0x1.36483713ee3aep-4);
    s = lv_fma(s, w, -0x1.1111065760c00p-5);
    s = lv_fma(s, w, 0x1.8618617b7b459p-6);
    s = lv_fma(s, w, -0x1.11111111100fbp-5);
    s = lv_fma(s, w, 0x1.5555555555555p-3);
    double r = lv_fma(lv_fma(s, v, 0.5), w, v);
    r = shift ? r + steps : r;
    double sine = lv_sinpi_over_pi(x - lv_round(x)), mirror = 1.0 / (sine * sine) - r;
    return x < 0.0 ? mirror : r;
}

/* ---------------------------------------------------------------- sine and cosine */

/* sin(x + quarter pi / 2). Cody and Waite with 160 bits of pi / 2, exact enough for |x| < 2^50. Beyond, where
 * neighbouring doubles are a quarter or more apart, the result is NaN. Kernels of FreeBSD's k_sin.c and k_cos.c. */
LV_FN double lv_sin_quarter(double x, uint64_t quarter) {
    double shifted = lv_fma(x, 0x1.45f306dc9c883p-1, LV_MAGIC), n = shifted - LV_MAGIC;
    double t = lv_fma(-n, 0x1.921fb54442d18p+0, x); /* exact */
    double p = n * 0x1.1a62633145c07p-54, p_error = lv_fma(n, 0x1.1a62633145c07p-54, -p);
    double high = t - p, back = t - high, error = (back - p) + (t - (high + back));
    double low = (error - p_error) - n * -0x1.f1976b7ed8fbcp-110;
    double r = high + low, rest = (high - r) + low, z = r * r;
    double s = 1.58969099521155010221e-10;
    s = lv_fma(s, z, -2.50507602534068634195e-08);
    s = lv_fma(s, z, 2.75573137070700676789e-06);
    s = lv_fma(s, z, -1.98412698298579493134e-04);
    s = lv_fma(s, z, 8.33333333332248946124e-03);
    s = lv_fma(s, z, -1.66666666666666324348e-01);
    s = r + lv_fma(s * z, r, lv_fma(-0.5 * z, rest, rest));
    double c = -1.13596475577881948265e-11;
    c = lv_fma(c, z, 2.08757232129817482790e-09);
    c = lv_fma(c, z, -2.75573143513906633035e-07);
    c = lv_fma(c, z, 2.48015872894767294178e-05);
    c = lv_fma(c, z, -1.38888888888741095749e-03);
    c = lv_fma(c, z, 4.16666666666666019037e-02);
    double half = 0.5 * z, one = 1.0 - half;
    c = one + (((1.0 - one) - half) + lv_fma(c * z, z, -r * rest));
    uint64_t turn = lv_bits(shifted) + quarter;
    double y = lv_double(lv_bits(turn & 1 ? c : s) ^ (turn & 2) << 62);
    return lv_abs(x) < 0x1p50 ? y : LV_NAN;
}

/* vector, < 1 ulp for |x| < 2^50 */
LV_FN double lv_sin(double x) { return lv_abs(x) < 0x1p-27 ? x : lv_sin_quarter(x, 0); }
LV_FN double lv_cos(double x) { return lv_sin_quarter(x, 1); }

/* ---------------------------------------------------------------- comparisons and remainders */

/* -1, 0 or 1; 0 for NaN, as torch.sign */
LV_FN double lv_sign(double x) { return x > 0.0 ? 1.0 : (x < 0.0 ? -1.0 : 0.0); }
LV_FN float lv_signf(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : 0.0f); }
/* NaN propagates. */
LV_FN double lv_maximum(double a, double b) { return a > b || a != a ? a : b; }
LV_FN float lv_maximumf(float a, float b) { return a > b || a != a ? a : b; }
LV_FN double lv_minimum(double a, double b) { return a < b || a != a ? a : b; }
LV_FN float lv_minimumf(float a, float b) { return a < b || a != a ? a : b; }
/* NaN only if both are. */
/* A NaN among the three gives NaN; low > high gives high. */
LV_FN double lv_heaviside(double x, double at_zero) { return x == 0.0 ? at_zero : (x > 0.0 ? 1.0 : 0.0); }
LV_FN float lv_heavisidef(float x, float at_zero) { return x == 0.0f ? at_zero : (x > 0.0f ? 1.0f : 0.0f); }

/* fmod is the C library's; exact, not vectorised. */
#define LV_DIVISIONS(T, S)                                                                  \
    LV_FN T lv_fmod##S(T a, T b) { return fmod##S(a, b); }                                  \
    /* a - floor(a / b) b: the sign of b, as Python */                                      \
    LV_FN T lv_remainder##S(T a, T b) {                                                     \
        T m = fmod##S(a, b);                                                                \
        return m != 0 && (b < 0) != (m < 0) ? m + b : m;                                    \
    }                                                                                       \
    LV_FN T lv_floor_divide##S(T a, T b) {                                                  \
        T m = fmod##S(a, b), q = (a - m) / b;                                               \
        q = m != 0 && (b < 0) != (m < 0) ? q - 1 : q;                                       \
        T f = lv_floor##S(q);                                                               \
        f = q - f > (T)0.5 ? f + 1 : f;                                                     \
        return b == 0 ? a / b : (q == 0 ? lv_copysign##S(0, a / b) : f);                    \
    }
LV_DIVISIONS(double, )
LV_DIVISIONS(float, f)
#undef LV_DIVISIONS

/* ---------------------------------------------------------------- modified Bessel functions */

/* Chebyshev series on [0, 8] in x / 2 - 2 and on [8, inf) in 32 / x - 2, by Clenshaw's recurrence, as Cephes. */
LV_FN double lv_i0e_positive(double a) {
    int far = a > 8.0;
    double y = far ? 32.0 / a - 2.0 : 0.5 * a - 2.0, c = 0.0, d = 0.0, e = far ? 0.0 : -4.4153416464793395e-18;
#define LV_STEP(near, distant) d = c, c = e, e = lv_fma(y, c, (far ? (distant) : (near)) - d)
    LV_STEP(3.3307945188222384e-17, 0.0);
    LV_STEP(-2.431279846547955e-16, 0.0);
    LV_STEP(1.715391285555133e-15, 0.0);
    LV_STEP(-1.1685332877993451e-14, 0.0);
    LV_STEP(7.676185498604936e-14, -7.235976647343305e-18);
    LV_STEP(-4.856446783111929e-13, -4.8276016511889554e-18);
    LV_STEP(2.95505266312964e-12, 4.465320822958278e-17);
    LV_STEP(-1.726826291441556e-11, 3.461533412667357e-17);
    LV_STEP(9.675809035373237e-11, -2.827655991941594e-16);
    LV_STEP(-5.189795601635263e-10, -3.425452690325178e-16);
    LV_STEP(2.6598237246823866e-09, 1.7725567523405534e-15);
    LV_STEP(-1.300025009986248e-08, 3.811684133730483e-15);
    LV_STEP(6.046995022541919e-08, -9.554850242647244e-15);
    LV_STEP(-2.670793853940612e-07, -4.1505689853929805e-14);
    LV_STEP(1.1173875391201037e-06, 1.540085848555733e-14);
    LV_STEP(-4.4167383584587505e-06, 3.8527784203009013e-13);
    LV_STEP(1.6448448070728896e-05, 7.180124413208477e-13);
    LV_STEP(-5.754195010082104e-05, -1.794178527632295e-12);
    LV_STEP(0.00018850288509584165, -1.3215811844374496e-11);
    LV_STEP(-0.0005763755745385824, -3.149916527565814e-11);
    LV_STEP(0.0016394756169413357, 1.1889147103829522e-11);
    LV_STEP(-0.004324309995050576, 4.940602388265516e-10);
    LV_STEP(0.010546460394594998, 3.396232025704299e-09);
    LV_STEP(-0.02373741480589947, 2.2666689904985896e-08);
    LV_STEP(0.04930528423967071, 2.0489185894690223e-07);
    LV_STEP(-0.09490109704804764, 2.8913705208347605e-06);
    LV_STEP(0.17162090152220877, 6.889758346916823e-05);
    LV_STEP(-0.3046826723431984, 0.0033691164782556943);
    LV_STEP(0.6767952744094761, 0.8044904110141088);
#undef LV_STEP
    double s = 0.5 * (e - d);
    return far ? s / lv_sqrt(a) : s;
}

LV_FN double lv_i1e_positive(double a) {
    int far = a > 8.0;
    double y = far ? 32.0 / a - 2.0 : 0.5 * a - 2.0, c = 0.0, d = 0.0, e = far ? 0.0 : -3.541581772542136e-19;
#define LV_STEP(near, distant) d = c, c = e, e = lv_fma(y, c, (far ? (distant) : (near)) - d)
    LV_STEP(2.7779141127610464e-18, 0.0);
    LV_STEP(-2.111421214358166e-17, 0.0);
    LV_STEP(1.5536319577362005e-16, 0.0);
    LV_STEP(-1.1055969477353862e-15, 0.0);
    LV_STEP(7.600684294735408e-15, 7.520891359327214e-18);
    LV_STEP(-5.042185504727912e-14, 4.410616121168809e-18);
    LV_STEP(3.223793365945575e-13, -4.6499188876686096e-17);
    LV_STEP(-1.9839743977649436e-12, -3.2099251925772936e-17);
    LV_STEP(1.1736186298890901e-11, 2.9626701550356795e-16);
    LV_STEP(-6.663489723502027e-11, 3.308159973343796e-16);
    LV_STEP(3.625590281552117e-10, -1.8803504288925105e-15);
    LV_STEP(-1.8872497517228294e-09, -3.814407526620154e-15);
    LV_STEP(9.381537386495773e-09, 1.0420281540450086e-14);
    LV_STEP(-4.445059128796328e-08, 4.2724395514211267e-14);
    LV_STEP(2.0032947535521353e-07, -2.1015413683900287e-14);
    LV_STEP(-8.568720264695455e-07, -4.083551159381846e-13);
    LV_STEP(3.4702513081376785e-06, -7.198551727163709e-13);
    LV_STEP(-1.3273163656039436e-05, 2.0356285391655942e-12);
    LV_STEP(4.781565107550054e-05, 1.4125807441662482e-11);
    LV_STEP(-0.00016176081582589674, 3.2526035825045125e-11);
    LV_STEP(0.0005122859561685758, -1.8974958118340826e-11);
    LV_STEP(-0.0015135724506312532, -5.589743462248715e-10);
    LV_STEP(0.004156422944312888, -3.835380385958982e-09);
    LV_STEP(-0.010564084894626197, -2.6314688468900487e-08);
    LV_STEP(0.024726449030626516, -2.512236237870156e-07);
    LV_STEP(-0.05294598120809499, -3.882564808877696e-06);
    LV_STEP(0.1026436586898471, -0.00011058893876262371);
    LV_STEP(-0.17641651835783406, -0.009761097491361469);
    LV_STEP(0.25258718644363365, 0.7785762350182801);
#undef LV_STEP
    double s = 0.5 * (e - d);
    return far ? s / lv_sqrt(a) : s * a;
}

LV_FN double lv_i0e(double x) { return lv_i0e_positive(lv_abs(x)); }
LV_FN double lv_i0(double x) { return lv_exp(lv_abs(x)) * lv_i0e_positive(lv_abs(x)); }
LV_FN double lv_i1e(double x) { return lv_copysign(lv_i1e_positive(lv_abs(x)), x); }
LV_FN double lv_i1(double x) { return lv_copysign(lv_exp(lv_abs(x)) * lv_i1e_positive(lv_abs(x)), x); }

/* ---------------------------------------------------------------- float by way of double */

#define LV_BY_DOUBLE(NAME) \
    LV_FN float lv_##NAME##f(float x) { return (float)lv_##NAME((double)x); }
LV_BY_DOUBLE(sin)
LV_BY_DOUBLE(cos)
LV_BY_DOUBLE(erf)
LV_BY_DOUBLE(erfc)
LV_BY_DOUBLE(ndtr)
LV_BY_DOUBLE(log_ndtr)
LV_BY_DOUBLE(ndtri)
LV_BY_DOUBLE(erfinv)
LV_BY_DOUBLE(lgamma)
LV_BY_DOUBLE(digamma)
LV_BY_DOUBLE(trigamma)
LV_BY_DOUBLE(i0)
LV_BY_DOUBLE(i0e)
LV_BY_DOUBLE(i1)
LV_BY_DOUBLE(i1e)
#undef LV_BY_DOUBLE

#endif
