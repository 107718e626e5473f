/* The compiled twins of kernels for which NumPy needs several passes, or has no SIMD.

       int OP_TYPE(const void *invec, void *inoutvec, size_t count);

   inoutvec[i] = invec[i] op inoutvec[i], invec the lower rank (MPI-4.1, 6.9.5); MAX and MIN leave the result in invec.
   Both hold `count` elements, contiguous and aligned, in native byte order. The bits are those of the kernels in NumPy
   (kernels.py), whatever the processor; those of NaNs in sums and products and of padding are not defined here either.
   What is returned is positive if finite operands gave an infinity, and negative if this processor cannot do it.

   TYPE is the NumPy code of the element with its bytes: f2, f4, f8, f16 (a long double), c4 to c32, and V_I for a pair.
   Products and sums must not be contracted: the command has -ffp-contract=off. */

#include <fenv.h>
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "each step must round to the type of its operands, as it does in NumPy"
#endif

#define KERNEL(NAME) int NAME(void *invec, void *inoutvec, size_t count)

/* A loop that gains by wider registers is compiled twice, and the loader takes the one for the processor. It is a function
   that is not inlined. Clang gives such functions other names. */

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define WIDER __attribute__((target_clones("default", "avx2")))
#else
#define WIDER __attribute__((noinline))
#endif

/* How the chosen element comes from one operand to the other. By its fields a compiler makes SIMD of it. Where it does
   not, as with integers of 64 bits, all bits are chosen by a mask. The empty instruction keeps it from making a branch of
   the mask, which would be predicted wrongly half of the time. */

#define BY_FIELDS(TYPE, TAKES, FROM, TO) \
    (TO)->value = (TAKES) ? (FROM)->value : (TO)->value; \
    (TO)->index = (TAKES) ? (FROM)->index : (TO)->index

#define BY_BITS(TYPE, TAKES, FROM, TO) \
    _Static_assert(sizeof(TYPE) % 8 == 0, "an element is made of whole words"); \
    uint64_t mask = -(uint64_t)(TAKES), from[sizeof(TYPE) / 8], to[sizeof(TYPE) / 8]; \
    __asm__("" : "+r"(mask)); \
    memcpy(from, (FROM), sizeof(TYPE)); \
    memcpy(to, (TO), sizeof(TYPE)); \
    for (size_t word = 0; word < sizeof(TYPE) / 8; word++) \
        to[word] ^= (from[word] ^ to[word]) & mask; \
    memcpy((TO), to, sizeof(TYPE))

/* What is compared: a number is itself. The bits of floating-point numbers may be taken as integers in the same order, in
   which both zeros are one and NaN comes before all others. */

#define NUMBER(OP, VALUE) (VALUE)
#define BITS16(OP, VALUE) ordered16_for_##OP(VALUE)
#define BITS64(OP, VALUE) ordered64_for_##OP(VALUE)

#define ORDERED(OP, WIDTH, INFINITE, NAN_FIRST) \
    static inline int##WIDTH##_t ordered##WIDTH##_for_##OP(int##WIDTH##_t bits) \
    { \
        int##WIDTH##_t magnitude = bits & INT##WIDTH##_MAX, sign = bits >> (WIDTH - 1); \
        int##WIDTH##_t signed_magnitude = (int##WIDTH##_t)((int##WIDTH##_t)(magnitude ^ sign) - sign); \
        return magnitude > INFINITE ? NAN_FIRST : signed_magnitude; \
    }

ORDERED(max, 16, 0x7c00, INT16_MAX)
ORDERED(min, 16, 0x7c00, INT16_MIN)
ORDERED(max, 64, 0x7ff0000000000000, INT64_MAX)
ORDERED(min, 64, 0x7ff0000000000000, INT64_MIN)

/* MAXLOC and MINLOC. Of an integer `lower != lower` is never true. */

#define LOCATE(OP, BETTER, V, VALUE, ORDER, I, INDEX, PUT) \
    KERNEL(OP##loc_##V##_##I) \
    { \
        typedef struct { VALUE value; INDEX index; } pair; \
        const pair *restrict a = invec; \
        pair *restrict b = inoutvec; \
        for (size_t i = 0; i < count; i++) { \
            int wins = ORDER(OP, a[i].value) BETTER ORDER(OP, b[i].value); \
            int ties = ORDER(OP, a[i].value) == ORDER(OP, b[i].value); \
            int comes_first = !(b[i].index < a[i].index); \
            int is_nan = a[i].value != a[i].value, beats_none = b[i].value == b[i].value; \
            int takes = wins | (ties & comes_first) | (is_nan & (beats_none | comes_first)); \
            PUT(pair, takes, a + i, b + i); \
        } \
        return 0; \
    }

#define BOTH(V, VALUE, ORDER, I, INDEX, PUT) \
    LOCATE(max, >, V, VALUE, ORDER, I, INDEX, PUT) \
    LOCATE(min, <, V, VALUE, ORDER, I, INDEX, PUT)

#define PAIRS(V, VALUE, ORDER, PUT) \
    BOTH(V, VALUE, ORDER, i1, int8_t, PUT) \
    BOTH(V, VALUE, ORDER, u1, uint8_t, PUT) \
    BOTH(V, VALUE, ORDER, i2, int16_t, PUT) \
    BOTH(V, VALUE, ORDER, u2, uint16_t, PUT) \
    BOTH(V, VALUE, ORDER, i4, int32_t, PUT) \
    BOTH(V, VALUE, ORDER, u4, uint32_t, PUT) \
    BOTH(V, VALUE, ORDER, i8, int64_t, BY_BITS) \
    BOTH(V, VALUE, ORDER, u8, uint64_t, BY_BITS)

PAIRS(i1, int8_t, NUMBER, BY_FIELDS)
PAIRS(u1, uint8_t, NUMBER, BY_FIELDS)
PAIRS(i2, int16_t, NUMBER, BY_FIELDS)
PAIRS(u2, uint16_t, NUMBER, BY_FIELDS)
PAIRS(i4, int32_t, NUMBER, BY_FIELDS)
PAIRS(u4, uint32_t, NUMBER, BY_FIELDS)
PAIRS(i8, int64_t, NUMBER, BY_BITS)
PAIRS(u8, uint64_t, NUMBER, BY_BITS)
PAIRS(f2, int16_t, BITS16, BY_FIELDS)
PAIRS(f4, float, NUMBER, BY_FIELDS)
#ifdef __clang__ /* which makes no SIMD of these, but branches */
PAIRS(f8, int64_t, BITS64, BY_BITS)
#else
PAIRS(f8, double, NUMBER, BY_FIELDS)
#endif
PAIRS(f16, long double, NUMBER, BY_BITS)
BOTH(f4, float, NUMBER, f4, float, BY_FIELDS)
BOTH(f8, double, NUMBER, f8, double, BY_FIELDS)

/* MAX and MIN: NaN wins, the lower rank's if both are, and its bits stay on a tie. The result is in invec. */

#define BY_NUMBER(TYPE, TAKES, FROM, TO) *(TO) = (TAKES) ? *(FROM) : *(TO)

#define CHOOSE(OP, BETTER, V, VALUE, ORDER, PUT) \
    WIDER KERNEL(OP##_##V) \
    { \
        VALUE *restrict a = invec; \
        const VALUE *restrict b = inoutvec; \
        for (size_t i = 0; i < count; i++) { \
            int wins = ORDER(OP, b[i]) BETTER ORDER(OP, a[i]); \
            int takes = wins | ((a[i] == a[i]) & (b[i] != b[i])); \
            PUT(VALUE, takes, b + i, a + i); \
        } \
        return 0; \
    }

#define EXTREMES(V, VALUE, ORDER, PUT) \
    CHOOSE(max, >, V, VALUE, ORDER, PUT) \
    CHOOSE(min, <, V, VALUE, ORDER, PUT)

EXTREMES(f2, int16_t, BITS16, BY_NUMBER)
EXTREMES(f4, float, NUMBER, BY_NUMBER)
EXTREMES(f8, double, NUMBER, BY_NUMBER)
EXTREMES(f16, long double, NUMBER, BY_BITS)

/* What rounds, and tells of overflow by the flag of the processor. The loop is a function of its own, so that no
   compiler moves it across the calls that clear and read the flag. */

#define NOTING(NAME) \
    static WIDER void NAME##_loop(const void *invec, void *inoutvec, size_t count); \
    KERNEL(NAME) \
    { \
        feclearexcept(FE_OVERFLOW); \
        NAME##_loop(invec, inoutvec, count); \
        return fetestexcept(FE_OVERFLOW) != 0; \
    } \
    static WIDER void NAME##_loop(const void *invec, void *inoutvec, size_t count)

/* Complex products by the textbook formula, each step rounded. */

#define PRODUCT(C, PART) \
    NOTING(prod_##C) \
    { \
        const PART *restrict a = invec; \
        PART *restrict b = inoutvec; \
        for (size_t i = 0; i < 2 * count; i += 2) { \
            PART real = a[i] * b[i] - a[i + 1] * b[i + 1]; \
            b[i + 1] = a[i] * b[i + 1] + a[i + 1] * b[i]; \
            b[i] = real; \
        } \
    }

PRODUCT(c8, float)
PRODUCT(c16, double)
PRODUCT(c32, long double)

/* Sums and products of numbers of 16 bits: computed in 32 bits, and each step rounded to 16. */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define WITH_F16C __attribute__((target("avx,f16c")))

static int has_f16c(void)
{
    unsigned eax, ebx, ecx = 0, edx;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static inline WITH_F16C __m256 wide(__m128i halves)
{
    return _mm256_cvtph_ps(halves);
}

static inline WITH_F16C __m128i rounded(__m256 numbers)
{
    return _mm256_cvtps_ph(numbers, _MM_FROUND_TO_NEAREST_INT);
}

static inline WITH_F16C __m128i sum(__m128i a, __m128i b)
{
    return rounded(_mm256_add_ps(wide(a), wide(b)));
}

static inline WITH_F16C __m128i product(__m128i a, __m128i b)
{
    return rounded(_mm256_mul_ps(wide(a), wide(b)));
}

static inline WITH_F16C __m128i complex_product(__m128i a, __m128i b)
{
    __m256 x = wide(a), y = wide(b);
    __m128i by_real = rounded(_mm256_mul_ps(_mm256_moveldup_ps(x), y));
    __m128i by_imag = rounded(_mm256_mul_ps(_mm256_movehdup_ps(x), _mm256_permute_ps(y, 0xb1)));
    return rounded(_mm256_addsub_ps(wide(by_real), wide(by_imag)));
}

#define EIGHT(COMBINED, A, B, NBYTES) \
    do { \
        __m128i lower = _mm_setzero_si128(), upper = _mm_setzero_si128(); \
        memcpy(&lower, (A), (NBYTES)); \
        memcpy(&upper, (B), (NBYTES)); \
        upper = COMBINED(lower, upper); \
        memcpy((B), &upper, (NBYTES)); \
    } while (0)

#define HALVES(NAME, COMBINED, PARTS) \
    static WITH_F16C __attribute__((noinline)) void NAME##_loop(const uint16_t *a, uint16_t *b, size_t count) \
    { \
        size_t rest = count % 8, i; \
        for (i = 0; i < count - rest; i += 8) \
            EIGHT(COMBINED, a + i, b + i, 8 * sizeof *b); \
        if (rest) \
            EIGHT(COMBINED, a + i, b + i, rest * sizeof *b); \
    } \
    KERNEL(NAME) \
    { \
        if (!has_f16c()) \
            return -1; \
        feclearexcept(FE_OVERFLOW); \
        NAME##_loop(invec, inoutvec, PARTS * count); \
        return fetestexcept(FE_OVERFLOW) != 0; \
    }

HALVES(sum_f2, sum, 1)
HALVES(sum_c4, sum, 2)
HALVES(prod_f2, product, 1)
HALVES(prod_c4, complex_product, 2)
#endif

/* The steps of several ops and statistics, which go through the elements of the n-th rank together, tile by tile: they
   come from the first-level cache for all but the first. Each step keeps its results in one or two planes. */

#define TILE 1024

typedef void step_of_state(void *elements, void *plane, void *other, size_t count, size_t n);

struct step {
    step_of_state *add;
    char *planes[2];
    size_t width; /* bytes of an element of a plane */
};

int chain(const struct step *steps, size_t nsteps, char *elements, size_t itemsize, size_t count, size_t n)
{
    feclearexcept(FE_OVERFLOW);
    for (size_t start = 0; start < count; start += TILE)
        for (const struct step *step = steps; step < steps + nsteps; step++) {
            size_t at = start * step->width, some = count - start < TILE ? count - start : TILE;
            step->add(elements + start * itemsize, step->planes[0] + at, step->planes[1] + at, some, n);
        }
    return fetestexcept(FE_OVERFLOW) != 0;
}

#define STEP(NAME) WIDER void NAME(void *elements, void *plane, void *other, size_t count, size_t n)

#define STEPS(V, VALUE) \
    STEP(step_max_##V) \
    { \
        (void)other, (void)n; \
        max_##V(plane, elements, count); \
    } \
    STEP(step_min_##V) \
    { \
        (void)other, (void)n; \
        min_##V(plane, elements, count); \
    } \
    STEP(step_mean_##V) \
    { \
        const VALUE *restrict numbers = elements; \
        double *restrict sum = plane; \
        (void)other, (void)n; \
        for (size_t i = 0; i < count; i++) \
            sum[i] += numbers[i]; \
    } \
    STEP(step_var_##V) /* Welford's recurrence, each step rounded */ \
    { \
        const VALUE *restrict numbers = elements; \
        double *restrict mean = plane, *restrict squares = other; \
        for (size_t i = 0; i < count; i++) { \
            double change = numbers[i] - mean[i]; \
            mean[i] += change / (double)n; \
            squares[i] += change * (numbers[i] - mean[i]); \
        } \
    }

STEPS(f4, float)
STEPS(f8, double)
