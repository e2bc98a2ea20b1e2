// Rotation on the CPU: every byte is read once and written once.
//
// The loops stand in rows.h, on vectors of vectors.h; both are compiled three times (portable, AVX2, AVX-512), and the best one that the
// machine has is chosen at run time. Arithmetic is float (double for double), with one rounding at the end.
#include "rotate.h"

#include <string.h>

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// ---------------------------------------------------------------------------------------------- numbers in memory

struct Bf16 {
    uint16_t bits;
};
struct F16 {
    uint16_t bits;
};

inline float as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline uint32_t as_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

inline float widen(float v) { return v; }
inline double widen(double v) { return v; }
inline float widen(Bf16 v) { return as_float(uint32_t(v.bits) << 16); }
inline float widen(F16 v) {
    const uint32_t magnitude = uint32_t(v.bits & 0x7fff) << 13, sign = uint32_t(v.bits & 0x8000) << 16;
    const float scaled = as_float(magnitude) * 0x1p112f;  // moves the exponent, and makes subnormals normal
    const uint32_t special = magnitude | 0x7f800000u;     // infinity and NaN keep their mantissa
    return as_float((magnitude >= 0x0f800000u ? special : as_bits(scaled)) | sign);
}

template <class T, class C>
inline T narrow(C v) {
    return v;
}
template <>
inline Bf16 narrow(float v) {  // rounded to nearest even
    const uint32_t u = as_bits(v);
    return {uint16_t(std::isnan(v) ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
template <>
inline F16 narrow(float v) {
    const uint32_t u = as_bits(v), sign = u & 0x80000000u, m = u ^ sign;
    const uint32_t normal = (m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13;  // rounded to nearest even
    const uint32_t subnormal = as_bits(as_float(m) + 0.5f) - as_bits(0.5f);       // the addition rounds
    const uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;                   // NaN or infinity
    const uint32_t small = m < 0x38800000u ? subnormal : normal;
    return {uint16_t((m >= 0x47800000u ? large : small) | (sign >> 16))};
}

// A number of the table whose NaN, if it is one, has a lower half of zeros, so that rounding to bfloat16 cannot carry it away.
inline float tidy(float v) { return std::isnan(v) ? as_float(0x7fc00000u) : v; }

constexpr int64_t SCRATCH = 8192;  // numbers of a prepared table: a block's rows while they fit, else fewer rows

// Tokens of an item. Long runs are kind to the machine's own prefetching; short inputs want enough items for all threads.
inline int64_t block_of(const ropewalk_rotation& r) { return r.tokens < 2048 ? 32 : 128; }

// ---------------------------------------------------------------------------------------------- the same source, three times

#define BYTES 16
#define TARGET
namespace portable {
#include "vectors.h"
//
#include "rows.h"
#include "table.h"
}  // namespace portable
#undef BYTES
#undef TARGET

#if defined(__x86_64__)
#define BYTES 32
#define TARGET __attribute__((target("avx2,fma,f16c,prefer-vector-width=256")))
namespace avx2 {
#include "vectors.h"
//
#include "rows.h"
#include "table.h"
}  // namespace avx2
#undef BYTES
#undef TARGET

#define BYTES 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")))
namespace avx512 {
#include "vectors.h"
//
#include "rows.h"
#include "table.h"
}  // namespace avx512
#undef BYTES
#undef TARGET
#endif

struct Compiled {
    void (*rotate)(const ropewalk_rotation&, int64_t, int64_t);
    void (*table)(const ropewalk_table&, int64_t, int64_t);
};
const Compiled COMPILED[] = {
    {portable::rotate, portable::table},
#if defined(__x86_64__)
    {avx2::rotate, avx2::table},
    {avx512::rotate, avx512::table},
#endif
};

int32_t find_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return ROPEWALK_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return ROPEWALK_AVX2;
#endif
    return ROPEWALK_PORTABLE;
}

const int32_t FOUND = find_isa();
int32_t in_use = FOUND;
}  // namespace

#if defined(__GNUC__)
#pragma GCC visibility push(default)  // tests call these by name
#endif
extern "C" {
int64_t ropewalk_items(const ropewalk_rotation* r) {
    return r->batch * (r->table_head ? r->heads : 1) * ((r->tokens + block_of(*r) - 1) / block_of(*r));
}
void ropewalk_rotate(const ropewalk_rotation* r, int64_t begin, int64_t end) { COMPILED[in_use].rotate(*r, begin, end); }
void ropewalk_cos_sin(const ropewalk_table* t, int64_t begin, int64_t end) { COMPILED[in_use].table(*t, begin, end); }
double ropewalk_read(const void* numbers, int64_t at, int32_t dtype) {
    switch (dtype) {
        case ROPEWALK_F64: return static_cast<const double*>(numbers)[at];
        case ROPEWALK_BF16: return widen(static_cast<const Bf16*>(numbers)[at]);
        case ROPEWALK_F16: return widen(static_cast<const F16*>(numbers)[at]);
    }
    return static_cast<const float*>(numbers)[at];
}
int32_t ropewalk_isa_found(void) { return FOUND; }
int32_t ropewalk_isa_in_use(void) { return in_use; }
int32_t ropewalk_use_isa(int32_t wanted) { return in_use = wanted < 0 || wanted > FOUND ? FOUND : wanted; }
}
