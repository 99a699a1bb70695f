/* The loop over the steps of a block: calls a generated step, and keeps what a run needs of each.

   A step takes `num_carried` tensors that it also returns (the position first), then other inputs whose address moves by a
   stride from step to step. It returns the carried tensors, energies, gradient norms and gradients. A row of the trace stands
   for `every` steps: the position, energy and norm of its last step, the gradient of its first; with several steps also the
   energy residual of the first step, and a sum that is not finite where some step was not. */
#include <stdint.h>
#include <string.h>

typedef int (*lv_program)(void *const *, void *const *, const double *, char *, void *const *);

struct lv_rows { /* where the rows of the trace are: the first one of these chains, and bytes between rows */
    char *position, *energy, *norm, *gradient, *residual, *sound;
    int64_t position_stride, number_stride, gradient_stride;
};

struct lv_job {
    lv_program run;
    void *const *constants;
    const double *parameters;
    char *workspace;
    void *const *calls;
    int64_t is_double, steps, every, chains, dim, num_carried, num_moving, num_elements, in_lanes;
    const int64_t *elements;  /* of the gradient that are kept; NULL for all */
    void **io;                /* room for all inputs and outputs */
    char **carried;           /* two buffers for each carried tensor; the first holds it at the beginning */
    char **moving;            /* addresses of the other inputs at the first step */
    const int64_t *strides;   /* bytes by which they move */
    char *energy, *norm, *gradient, *first_position; /* two each: of even and of odd steps; the last one only one */
    struct lv_rows rows;
};

#define DEFINE(T, NAME)                                                                                                     \
    static void rows_of_##NAME(const struct lv_job *job, const T *from, T *to, int64_t count, const int64_t *which) {       \
        const int64_t chains = job->chains, dim = job->dim;                                                                 \
        if (!job->in_lanes && !which) { memcpy(to, from, chains * dim * sizeof(T)); return; }                               \
        const int64_t one = job->in_lanes ? chains : 1, next = job->in_lanes ? 1 : dim;                                     \
        for (int64_t c = 0; c < chains; c++)                                                                                \
            for (int64_t k = 0; k < count; k++) to[c * count + k] = from[(which ? which[k] : k) * one + c * next];          \
    }                                                                                                                       \
    static int loop_##NAME(const struct lv_job *job) {                                                                      \
        const int64_t chains = job->chains, dim = job->dim, size = chains * dim;                                            \
        const int64_t count = job->elements ? job->num_elements : dim, carried = job->num_carried;                          \
        const int64_t inputs = carried + job->num_moving;                                                                   \
        const struct lv_rows *rows = &job->rows;                                                                            \
        for (int64_t s = 0; s < job->steps; s++) {                                                                          \
            const int64_t odd = s & 1, row = s / job->every, part = s % job->every;                                         \
            T *energy = (T *)job->energy + odd * chains, *norm = (T *)job->norm + odd * chains;                             \
            T *gradient = (T *)job->gradient + odd * size;                                                                  \
            for (int64_t k = 0; k < carried; k++) {                                                                         \
                job->io[k] = job->carried[2 * k + odd];                                                                     \
                job->io[inputs + k] = job->carried[2 * k + 1 - odd];                                                        \
            }                                                                                                               \
            for (int64_t k = 0; k < job->num_moving; k++) job->io[carried + k] = job->moving[k] + s * job->strides[k];      \
            job->io[inputs + carried] = energy;                                                                             \
            job->io[inputs + carried + 1] = norm;                                                                           \
            job->io[inputs + carried + 2] = gradient;                                                                       \
            const int bad = job->run(job->io, job->constants, job->parameters, job->workspace, job->calls);                 \
            if (bad) return bad;                                                                                            \
            const T *before = (const T *)job->carried[odd], *after = (const T *)job->carried[1 - odd];                      \
            if (part == 0)                                                                                                  \
                rows_of_##NAME(job, gradient, (T *)(rows->gradient + row * rows->gradient_stride), count, job->elements);   \
            if (job->every > 1) {                                                                                           \
                T *sound = (T *)(rows->sound + row * rows->number_stride);                                                  \
                for (int64_t c = 0; c < chains; c++) {                                                                      \
                    const T finite = 0 * (energy[c] + norm[c]);                                                             \
                    sound[c] = part ? sound[c] + finite : finite;                                                           \
                }                                                                                                           \
                if (part == 0) memcpy(job->first_position, before, size * sizeof(T));                                       \
                if (part == 1) {                                                                                            \
                    const T *first = (const T *)job->first_position, *earlier = (const T *)job->gradient + (1 - odd) * size; \
                    const T *start = (const T *)job->energy + (1 - odd) * chains;                                           \
                    T *residual = (T *)(rows->residual + row * rows->number_stride);                                        \
                    const int64_t one = job->in_lanes ? chains : 1, next = job->in_lanes ? 1 : dim;                         \
                    for (int64_t c = 0; c < chains; c++) {                                                                  \
                        T middle = 0;                                                                                       \
                        for (int64_t k = 0; k < dim; k++) {                                                                 \
                            const int64_t at = k * one + c * next;                                                          \
                            middle += (before[at] - first[at]) * (gradient[at] + earlier[at]);                              \
                        }                                                                                                   \
                        residual[c] = energy[c] - start[c] - middle / 2;                                                    \
                    }                                                                                                       \
                }                                                                                                           \
            }                                                                                                               \
            if (part == job->every - 1) {                                                                                   \
                rows_of_##NAME(job, after, (T *)(rows->position + row * rows->position_stride), dim, 0);                    \
                memcpy(rows->energy + row * rows->number_stride, energy, chains * sizeof(T));                               \
                memcpy(rows->norm + row * rows->number_stride, norm, chains * sizeof(T));                                   \
            }                                                                                                               \
        }                                                                                                                   \
        return 0;                                                                                                           \
    }

DEFINE(double, f64)
DEFINE(float, f32)

int lv_loop(const struct lv_job *job) { return job->is_double ? loop_f64(job) : loop_f32(job); }
