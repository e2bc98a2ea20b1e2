// Rotation on the CPU: every byte is read once and written once.
//
// The loops are plain C++ that a compiler turns into vector code; the same source is compiled three times (portable, AVX2, AVX-512)
// and the best one that the machine has is chosen at run time. Arithmetic is float (double for double), with one rounding at the end.
#include "rotate.h"

#include <string.h>

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define INDEPENDENT _Pragma("GCC ivdep")  // in place, x and y are the same; an iteration never reads what another writes

namespace {

// ---------------------------------------------------------------------------------------------- numbers in memory
// A half-precision number is widened and narrowed with integer operations, which vectorise everywhere.

struct Bf16 {
    uint16_t bits;
};
struct F16 {
    uint16_t bits;
};

INLINE float as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
INLINE uint32_t as_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

INLINE float load(float v) { return v; }
INLINE double load(double v) { return v; }
INLINE float load(Bf16 v) { return as_float(uint32_t(v.bits) << 16); }
INLINE float load(F16 v) {
    uint32_t magnitude = uint32_t(v.bits & 0x7fff) << 13, sign = uint32_t(v.bits & 0x8000) << 16;
    float scaled = as_float(magnitude) * 0x1p112f;  // moves the exponent, and makes subnormals normal
    uint32_t special = magnitude | 0x7f800000u;     // infinity and NaN keep their mantissa
    return as_float((magnitude >= 0x0f800000u ? special : as_bits(scaled)) | sign);
}

INLINE void store(float& to, float v) { to = v; }
INLINE void store(double& to, double v) { to = v; }
INLINE uint32_t bf16_bits(float v) {  // rounded to nearest even, in the upper half of the word
    uint32_t u = as_bits(v);
    uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (u & 0x7fffffffu) > 0x7f800000u ? (u | 0x400000u) : rounded;
}
INLINE void store(Bf16& to, float v) { to.bits = uint16_t(bf16_bits(v) >> 16); }
INLINE void store(F16& to, float v) {
    uint32_t u = as_bits(v), sign = u & 0x80000000u, m = u ^ sign;
    uint32_t normal = (m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13;      // rounded to nearest even
    uint32_t subnormal = as_bits(as_float(m) + 0.5f) - as_bits(0.5f);           // the addition rounds
    uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;                       // NaN or infinity
    uint32_t small = m < 0x38800000u ? subnormal : normal;
    to.bits = uint16_t((m >= 0x47800000u ? large : small) | (sign >> 16));
}

// a·c ± b·s with one rounding less where the machine can; spelled out, so that vector body and tail agree to the bit.
template <bool FMA, class C>
INLINE C minus(C a, C c, C b, C s) {
    return FMA ? std::fma(-b, s, a * c) : a * c - b * s;
}
template <bool FMA, class C>
INLINE C plus(C a, C c, C b, C s) {
    return FMA ? std::fma(b, s, a * c) : a * c + b * s;
}

// ---------------------------------------------------------------------------------------------- one row
// A row is the channels of one head of one token. `Row::prepare` arranges a row of the table once for all heads of a token.

template <class T, class C, int LAYOUT, bool FMA>
struct Row;

template <class T, class C, bool FMA>
struct Row<T, C, ROPEWALK_HALF, FMA> {
    INLINE void prepare(const C* cos, const C* sin, C sign, int64_t pairs, C* c, C* s) {
        for (int64_t i = 0; i < pairs; i++) c[i] = cos[i], s[i] = sin[i] * sign;
    }
    template <class X>
    INLINE void turn(const X* x, T* y, const C* c, const C* s, int64_t pairs) {
        INDEPENDENT for (int64_t i = 0; i < pairs; i++) {
            C a = load(x[i]), b = load(x[i + pairs]);
            store(y[i], minus<FMA>(a, c[i], b, s[i]));
            store(y[i + pairs], plus<FMA>(b, c[i], a, s[i]));
        }
    }
};

template <class T, class C, bool FMA>
struct Row<T, C, ROPEWALK_INTERLEAVED, FMA> {
    INLINE void prepare(const C* cos, const C* sin, C sign, int64_t pairs, C* c, C* s) {
        for (int64_t i = 0; i < pairs; i++) c[i] = cos[i], s[i] = sin[i] * sign;
    }
    template <class X>
    INLINE void turn(const X* x, T* y, const C* c, const C* s, int64_t pairs) {
        INDEPENDENT for (int64_t i = 0; i < pairs; i++) {
            C a = load(x[2 * i]), b = load(x[2 * i + 1]);
            store(y[2 * i], minus<FMA>(a, c[i], b, s[i]));
            store(y[2 * i + 1], plus<FMA>(b, c[i], a, s[i]));
        }
    }
};

// Two bfloat16 are one 32-bit word, so no lane ever changes its width. Neighbours are the two halves of a word.
INLINE float low(uint32_t word) { return as_float(word << 16); }
INLINE float high(uint32_t word) { return as_float(word & 0xffff0000u); }
INLINE uint32_t word(float low, float high) { return (bf16_bits(low) >> 16) | (bf16_bits(high) & 0xffff0000u); }
INLINE uint32_t load_word(const Bf16* x) {
    uint32_t w;
    memcpy(&w, x, 4);
    return w;
}
INLINE void store_word(Bf16* y, uint32_t w) { memcpy(y, &w, 4); }

template <bool FMA>
INLINE void turn_words_interleaved(const Bf16* x, Bf16* y, const float* c, const float* s, int64_t pairs) {
    INDEPENDENT for (int64_t i = 0; i < pairs; i++) {
        uint32_t w = load_word(x + 2 * i);
        float a = low(w), b = high(w);
        store_word(y + 2 * i, word(minus<FMA>(a, c[i], b, s[i]), plus<FMA>(b, c[i], a, s[i])));
    }
}

// A word holds neighbours of the same half, so c and s hold the even pairs first and then the odd ones.
template <bool FMA>
INLINE void turn_words_half(const Bf16* x, Bf16* y, const float* c, const float* s, int64_t pairs) {
    const int64_t n = pairs / 2;
    INDEPENDENT for (int64_t i = 0; i < n; i++) {
        uint32_t u = load_word(x + 2 * i), v = load_word(x + pairs + 2 * i);
        float a0 = low(u), a1 = high(u), b0 = low(v), b1 = high(v);
        float c0 = c[i], c1 = c[i + n], s0 = s[i], s1 = s[i + n];
        store_word(y + 2 * i, word(minus<FMA>(a0, c0, b0, s0), minus<FMA>(a1, c1, b1, s1)));
        store_word(y + pairs + 2 * i, word(plus<FMA>(b0, c0, a0, s0), plus<FMA>(b1, c1, a1, s1)));
    }
}

template <bool FMA>
struct Words : Row<Bf16, float, ROPEWALK_INTERLEAVED, FMA> {
    INLINE void turn(const Bf16* x, Bf16* y, const float* c, const float* s, int64_t pairs) {
        turn_words_interleaved<FMA>(x, y, c, s, pairs);
    }
};

template <bool FMA>
struct HalfWords {
    INLINE void prepare(const float* cos, const float* sin, float sign, int64_t pairs, float* c, float* s) {
        const int64_t n = pairs / 2;
        for (int64_t i = 0; i < n; i++) {
            c[i] = cos[2 * i], c[i + n] = cos[2 * i + 1];
            s[i] = sin[2 * i] * sign, s[i + n] = sin[2 * i + 1] * sign;
        }
    }
    INLINE void turn(const Bf16* x, Bf16* y, const float* c, const float* s, int64_t pairs) {
        turn_words_half<FMA>(x, y, c, s, pairs);
    }
};

// float16 is widened, turned as float and narrowed by the machine's own instructions, a row at a time in the nearest cache.
#if defined(__x86_64__)
#define F16C __attribute__((target("avx2,f16c"))) static inline
F16C void widen(const F16* x, float* out, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))));
    for (; i < n; i++) out[i] = load(x[i]);
}
F16C void narrow(const float* x, F16* out, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i*)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) store(out[i], x[i]);
}
template <int LAYOUT>
struct WidenedRow : Row<float, float, LAYOUT, true> {
    INLINE void turn(const F16* x, F16* y, const float* c, const float* s, int64_t pairs) {
        alignas(64) float wide[2 * ROPEWALK_MAX_PAIRS];
        widen(x, wide, 2 * pairs);
        Row<float, float, LAYOUT, true>::turn(wide, wide, c, s, pairs);
        narrow(wide, y, 2 * pairs);
    }
};
#endif

// ---------------------------------------------------------------------------------------------- past the caches

// Copies a row without reading its target into the caches first. Target and length are multiples of 64 bytes.
#if defined(__x86_64__)
__attribute__((target("avx2"))) static inline void stream_row_avx2(void* to, const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((__m256i*)((char*)to + i), _mm256_load_si256((const __m256i*)((const char*)from + i)));
}
__attribute__((target("avx512f"))) static inline void stream_row_avx512(void* to, const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
        _mm512_stream_si512((__m512i*)((char*)to + i), _mm512_load_si512((const __m512i*)((const char*)from + i)));
}
#endif

// ---------------------------------------------------------------------------------------------- the norm before

// RMSNorm of a row, in the type of the arithmetic: x / sqrt(mean(x²) + ε) · weight. Summed in a fixed order.
template <class T, class C>
INLINE void norm_row(const T* x, C* out, const C* weight, C epsilon, int64_t channels) {
    const int64_t LANES = 16;
    C sums[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= channels; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) {
            C v = load(x[i + lane]);
            sums[lane] += v * v;
        }
    C sum = 0;
    for (int64_t lane = 0; lane < LANES; lane++) sum += sums[lane];
    for (; i < channels; i++) sum += C(load(x[i])) * C(load(x[i]));
    const C scale = C(1) / std::sqrt(sum / C(channels) + epsilon);
    for (i = 0; i < channels; i++) out[i] = C(load(x[i])) * scale * weight[i];
}

// ---------------------------------------------------------------------------------------------- the loops

constexpr int64_t BLOCK = 16;      // tokens of an item
constexpr int64_t SCRATCH = 2048;  // pairs of a prepared table: a block's rows while they fit, else fewer rows

// The common widths are spelled out, so that their loops have a known length and need no remainder.
template <class R, class T, class C>
INLINE void turn_row(const T* x, T* y, const C* c, const C* s, int64_t pairs) {
    if (pairs == 64) return R::turn(x, y, c, s, 64);
    if (pairs == 32) return R::turn(x, y, c, s, 32);
    R::turn(x, y, c, s, pairs);
}

template <class T, class C, class R, int ISA, bool NORM, bool STREAM>
INLINE void rotate_items(const ropewalk_rotation& r, int64_t begin, int64_t end) {
    const int64_t blocks = (r.tokens + BLOCK - 1) / BLOCK;
    const int64_t outer_heads = r.table_head ? r.heads : 1, inner_heads = r.table_head ? 1 : r.heads;
    const C sign = r.inverse ? C(-1) : C(1);
    const int64_t pairs = r.pairs, first = r.first, rest = r.first + 2 * r.pairs, channels = r.channels;
    const bool copy_first = r.x != r.y && first, copy_rest = r.x != r.y && rest < channels;
    const int64_t rows = SCRATCH / pairs < BLOCK ? SCRATCH / pairs : BLOCK;
    const int64_t bytes = channels * int64_t(sizeof(T));
    alignas(64) C c[SCRATCH];
    alignas(64) C s[SCRATCH];
    alignas(64) T line[STREAM ? ROPEWALK_MAX_CHANNELS : 1];
    alignas(64) C normed[NORM ? ROPEWALK_MAX_CHANNELS : 1];

    for (int64_t item = begin; item < end; item++) {
        const int64_t block = item % blocks, head = item / blocks % outer_heads, batch = item / blocks / outer_heads;
        const int64_t last = (block + 1) * BLOCK < r.tokens ? (block + 1) * BLOCK : r.tokens;
        const T* x_item = static_cast<const T*>(r.x) + batch * r.x_batch + head * r.x_head;
        T* y_item = static_cast<T*>(r.y) + batch * r.y_batch + head * r.y_head;
        const int64_t table = batch * r.table_batch + head * r.table_head;
        for (int64_t from = block * BLOCK; from < last; from += rows) {
            const int64_t count = from + rows < last ? rows : last - from;
            for (int64_t t = 0; t < count; t++) {
                const int64_t at = table + (from + t) * r.table_token;
                R::prepare(static_cast<const C*>(r.cos) + at, static_cast<const C*>(r.sin) + at, sign, pairs,
                           c + t * pairs, s + t * pairs);
            }
            // Whichever of heads and tokens lies closer together in memory is walked in the inner loop.
            const bool heads_inside = count == 1 || r.x_head < r.x_token;
            const int64_t outside = heads_inside ? count : inner_heads, inside = heads_inside ? inner_heads : count;
            for (int64_t o = 0; o < outside; o++)
                for (int64_t i = 0; i < inside; i++) {
                    const int64_t t = heads_inside ? o : i, h = heads_inside ? i : o;
                    const T* x = x_item + (from + t) * r.x_token + h * r.x_head;
                    T* y = y_item + (from + t) * r.y_token + h * r.y_head;
                    T* to = STREAM ? line : y;
                    if constexpr (NORM) {
                        norm_row(x, normed, static_cast<const C*>(r.weight), C(r.epsilon), channels);
                        R::turn(normed + first, to + first, c + t * pairs, s + t * pairs, pairs);
                        for (int64_t j = 0; j < first; j++) store(to[j], normed[j]);
                        for (int64_t j = rest; j < channels; j++) store(to[j], normed[j]);
                    } else {
                        turn_row<R>(x + first, to + first, c + t * pairs, s + t * pairs, pairs);
                        if (copy_first) memcpy(to, x, size_t(first) * sizeof(T));
                        if (copy_rest) memcpy(to + rest, x + rest, size_t(channels - rest) * sizeof(T));
                    }
#if defined(__x86_64__)
                    if constexpr (STREAM && ISA == ROPEWALK_AVX512) stream_row_avx512(y, line, bytes);
                    if constexpr (STREAM && ISA == ROPEWALK_AVX2) stream_row_avx2(y, line, bytes);
#endif
                }
        }
    }
}

template <class T, class C, class Plain, class Generic, int ISA>
INLINE void choose_way(const ropewalk_rotation& r, int64_t begin, int64_t end) {
    if (r.weight) return rotate_items<T, C, Generic, ISA, true, false>(r, begin, end);
#if defined(__x86_64__)
    if (ISA != ROPEWALK_PORTABLE && r.stream) {
        rotate_items<T, C, Plain, ISA, false, true>(r, begin, end);
        return _mm_sfence();
    }
#endif
    rotate_items<T, C, Plain, ISA, false, false>(r, begin, end);
}

template <int ISA>
INLINE void choose_type(const ropewalk_rotation& r, int64_t begin, int64_t end) {
    constexpr bool FMA = ISA != ROPEWALK_PORTABLE;
#define ROPEWALK_CASE(DTYPE, T, C)                                                                   \
    case 2 * DTYPE + ROPEWALK_HALF:                                                                  \
        return choose_way<T, C, Row<T, C, ROPEWALK_HALF, FMA>, Row<T, C, ROPEWALK_HALF, FMA>, ISA>(r, begin, end); \
    case 2 * DTYPE + ROPEWALK_INTERLEAVED:                                                           \
        return choose_way<T, C, Row<T, C, ROPEWALK_INTERLEAVED, FMA>, Row<T, C, ROPEWALK_INTERLEAVED, FMA>, ISA>(r, begin, end);
    using GenericHalf = Row<Bf16, float, ROPEWALK_HALF, FMA>;
    using GenericInterleaved = Row<Bf16, float, ROPEWALK_INTERLEAVED, FMA>;
    switch (2 * r.dtype + r.layout) {
        ROPEWALK_CASE(ROPEWALK_F32, float, float)
        ROPEWALK_CASE(ROPEWALK_F64, double, double)
#if defined(__x86_64__)
        case 2 * ROPEWALK_F16 + ROPEWALK_HALF:
            if constexpr (FMA) return choose_way<F16, float, WidenedRow<ROPEWALK_HALF>, Row<F16, float, ROPEWALK_HALF, FMA>, ISA>(r, begin, end);
            return choose_way<F16, float, Row<F16, float, ROPEWALK_HALF, FMA>, Row<F16, float, ROPEWALK_HALF, FMA>, ISA>(r, begin, end);
        case 2 * ROPEWALK_F16 + ROPEWALK_INTERLEAVED:
            if constexpr (FMA) return choose_way<F16, float, WidenedRow<ROPEWALK_INTERLEAVED>, Row<F16, float, ROPEWALK_INTERLEAVED, FMA>, ISA>(r, begin, end);
            return choose_way<F16, float, Row<F16, float, ROPEWALK_INTERLEAVED, FMA>, Row<F16, float, ROPEWALK_INTERLEAVED, FMA>, ISA>(r, begin, end);
#else
        ROPEWALK_CASE(ROPEWALK_F16, F16, float)
#endif
        case 2 * ROPEWALK_BF16 + ROPEWALK_HALF:
            if (r.pairs % 2) return choose_way<Bf16, float, GenericHalf, GenericHalf, ISA>(r, begin, end);
            return choose_way<Bf16, float, HalfWords<FMA>, GenericHalf, ISA>(r, begin, end);
        case 2 * ROPEWALK_BF16 + ROPEWALK_INTERLEAVED:
            return choose_way<Bf16, float, Words<FMA>, GenericInterleaved, ISA>(r, begin, end);
    }
#undef ROPEWALK_CASE
}

// ---------------------------------------------------------------------------------------------- cosine and sine

// A phase is a fraction of a turn in 64 bits. Its top two bits, rounded, are the quadrant; what is left lies within an eighth of a
// turn of zero, where two short polynomials give sine and cosine to 1e-11 (float) or to the last bits of a double.
template <class C>
INLINE void cos_sin_items(const ropewalk_table& t, int64_t begin, int64_t end) {
    constexpr double RADIANS = 6.283185307179586476925 / 18446744073709551616.0;
    C* cos = static_cast<C*>(t.cos);
    C* sin = static_cast<C*>(t.sin);
    INDEPENDENT for (int64_t i = begin; i < end; i++) {
        const uint64_t phase = uint64_t(t.phases[i]);
        const uint64_t quadrant = (phase + (uint64_t(1) << 61)) >> 62;
        const double x = double(int64_t(phase - (quadrant << 62))) * RADIANS, x2 = x * x;
        double s, c;
        if (sizeof(C) == 4) {
            s = -2.5052108385441720e-8;
            c = -2.7557319223985888e-7;
        } else {
            s = 2.8114572543455206e-15;  // 1/17!
            s = s * x2 - 7.6471637318198164e-13;
            s = s * x2 + 1.6059043836821613e-10;
            s = s * x2 - 2.5052108385441720e-8;
            c = 4.7794773323873853e-14;  // 1/16!
            c = c * x2 - 1.1470745597729725e-11;
            c = c * x2 + 2.0876756987868099e-9;
            c = c * x2 - 2.7557319223985888e-7;
        }
        s = s * x2 + 2.7557319223985893e-6;
        s = s * x2 - 1.9841269841269841e-4;
        s = s * x2 + 8.3333333333333332e-3;
        s = s * x2 - 1.6666666666666666e-1;
        s = s * x2 * x + x;
        c = c * x2 + 2.4801587301587302e-5;
        c = c * x2 - 1.3888888888888889e-3;
        c = c * x2 + 4.1666666666666664e-2;
        c = c * x2 - 0.5;
        c = c * x2 + 1.0;
        const bool swap = quadrant & 1;
        double cosine = swap ? s : c, sine = swap ? c : s;
        cosine = (quadrant + 1) & 2 ? -cosine : cosine;
        sine = quadrant & 2 ? -sine : sine;
        cos[i] = C(cosine * t.factor);
        sin[i] = C(sine * t.factor);
    }
}

INLINE void choose_table(const ropewalk_table& t, int64_t begin, int64_t end) {
    return t.is_double ? cos_sin_items<double>(t, begin, end) : cos_sin_items<float>(t, begin, end);
}

// ---------------------------------------------------------------------------------------------- the same source, three times

struct Compiled {
    void (*rotate)(const ropewalk_rotation&, int64_t, int64_t);
    void (*table)(const ropewalk_table&, int64_t, int64_t);
};

void rotate_portable(const ropewalk_rotation& r, int64_t b, int64_t e) { choose_type<ROPEWALK_PORTABLE>(r, b, e); }
void table_portable(const ropewalk_table& t, int64_t b, int64_t e) { choose_table(t, b, e); }

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma,prefer-vector-width=256")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")))
AVX2 void rotate_avx2(const ropewalk_rotation& r, int64_t b, int64_t e) { choose_type<ROPEWALK_AVX2>(r, b, e); }
AVX2 void table_avx2(const ropewalk_table& t, int64_t b, int64_t e) { choose_table(t, b, e); }
AVX512 void rotate_avx512(const ropewalk_rotation& r, int64_t b, int64_t e) { choose_type<ROPEWALK_AVX512>(r, b, e); }
AVX512 void table_avx512(const ropewalk_table& t, int64_t b, int64_t e) { choose_table(t, b, e); }

const Compiled COMPILED[] = {
    {rotate_portable, table_portable}, {rotate_avx2, table_avx2}, {rotate_avx512, table_avx512}};

int32_t find_isa() {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return ROPEWALK_AVX512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? ROPEWALK_AVX2 : ROPEWALK_PORTABLE;
}
#else
const Compiled COMPILED[] = {{rotate_portable, table_portable}};
int32_t find_isa() { return ROPEWALK_PORTABLE; }
#endif

const int32_t FOUND = find_isa();
int32_t in_use = FOUND;
}  // namespace

#if defined(__GNUC__)
#pragma GCC visibility push(default)  // tests call these by name
#endif
extern "C" {
int64_t ropewalk_items(const ropewalk_rotation* r) {
    return r->batch * (r->table_head ? r->heads : 1) * ((r->tokens + BLOCK - 1) / BLOCK);
}
void ropewalk_rotate(const ropewalk_rotation* r, int64_t begin, int64_t end) { COMPILED[in_use].rotate(*r, begin, end); }
void ropewalk_cos_sin(const ropewalk_table* t, int64_t begin, int64_t end) { COMPILED[in_use].table(*t, begin, end); }
int32_t ropewalk_isa_found(void) { return FOUND; }
int32_t ropewalk_isa_in_use(void) { return in_use; }
int32_t ropewalk_use_isa(int32_t wanted) { return in_use = wanted < 0 || wanted > FOUND ? FOUND : wanted; }
}
