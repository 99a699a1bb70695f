/* The functions of lv_linalg.h as pointers into one shared library: a program that calls them compiles at once. */
#ifndef LV_LINALG_TABLE_H
#define LV_LINALG_TABLE_H
#include <stdint.h>

#define LV_TABLE(T, S)                                                                                                      \
    static void (*lv_mm_##S)(long, long, long, const T *, long, long, const T *, long, long, T *, long, long, T, T);        \
    static int (*lv_cholesky_##S)(long, const T *, long, long, T *, long, long, int);                                       \
    static void (*lv_trsolve_##S)(long, long, const T *, long, long, T *, long, long, int, int, int, int);                  \
    static int (*lv_lu_##S)(long, const T *, long, long, T *, long, long, int *);                                           \
    static void (*lv_lu_solve_##S)(long, long, const T *, long, long, const int *, T *, long, long, int, int);              \
    static T (*lv_slogdet_from_lu_##S)(long, const T *, long, long, const int *, T *);                                      \
    static void lv_take_##S(void *const *table) {                                                                           \
        lv_mm_##S = (void (*)(long, long, long, const T *, long, long, const T *, long, long, T *, long, long, T, T))table[0]; \
        lv_cholesky_##S = (int (*)(long, const T *, long, long, T *, long, long, int))table[1];                             \
        lv_trsolve_##S = (void (*)(long, long, const T *, long, long, T *, long, long, int, int, int, int))table[2];        \
        lv_lu_##S = (int (*)(long, const T *, long, long, T *, long, long, int *))table[3];                                 \
        lv_lu_solve_##S =                                                                                                   \
            (void (*)(long, long, const T *, long, long, const int *, T *, long, long, int, int))table[4];                  \
        lv_slogdet_from_lu_##S = (T (*)(long, const T *, long, long, const int *, T *))table[5];                            \
    }
LV_TABLE(double, f64)
LV_TABLE(float, f32)
#undef LV_TABLE

void lv_take_linalg(void *const *table) {
    lv_take_f64(table);
    lv_take_f32(table + 6);
}
#endif
