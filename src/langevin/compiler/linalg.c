/* Linear algebra for generated programs, compiled once for a type, f64 or f32, and a part: `lv_linalg_table.h` takes the pointers. */
#include "lv_linalg.h"

void lv_take_blas(void *const *table) { lv_use_blas(table); }

#define LV_JOIN_(name, type) lv_##name##_##type
#define LV_JOIN(name, type) LV_JOIN_(name, type)
#define LV_FUNCTION(name) (void *)LV_JOIN(name, LV_TYPE)

#ifdef LV_PRODUCTS
void *lv_linalg_functions[] = {LV_FUNCTION(mm)};
#else
void *lv_linalg_functions[] = {
    LV_FUNCTION(cholesky), LV_FUNCTION(trsolve), LV_FUNCTION(lu), LV_FUNCTION(lu_solve), LV_FUNCTION(slogdet_from_lu)};
#endif
