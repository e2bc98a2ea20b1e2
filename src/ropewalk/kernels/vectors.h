// Vectors of one instruction set, and how numbers in memory become them. rotate.cpp includes this once for each set, inside a namespace of
// its own, with BYTES (of a vector) and TARGET (the attribute that lets a function use the set) defined.

#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float F32 __attribute__((vector_size(BYTES)));
typedef double F64 __attribute__((vector_size(BYTES)));
typedef uint32_t U32 __attribute__((vector_size(BYTES)));

template <class V, class T>
INLINE V read(const T* from) {
    V v;
    memcpy(&v, from, sizeof v);
    return v;
}
template <class V, class T>
INLINE void write(T* to, V v) {
    memcpy(to, &v, sizeof v);
}

// a·b + c, with one rounding where the machine can; and each lane exchanged with its neighbour.
#if BYTES == 64
INLINE F32 fma(F32 a, F32 b, F32 c) { return F32(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c))); }
INLINE F64 fma(F64 a, F64 b, F64 c) { return F64(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c))); }
INLINE F32 neighbours(F32 v) { return F32(_mm512_permute_ps(__m512(v), 0xb1)); }
INLINE F64 neighbours(F64 v) { return F64(_mm512_permute_pd(__m512d(v), 0x55)); }
#elif BYTES == 32
INLINE F32 fma(F32 a, F32 b, F32 c) { return F32(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c))); }
INLINE F64 fma(F64 a, F64 b, F64 c) { return F64(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c))); }
INLINE F32 neighbours(F32 v) { return F32(_mm256_permute_ps(__m256(v), 0xb1)); }
INLINE F64 neighbours(F64 v) { return F64(_mm256_permute_pd(__m256d(v), 0x5)); }
#else
INLINE F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
INLINE F64 fma(F64 a, F64 b, F64 c) { return a * b + c; }
INLINE F32 neighbours(F32 v) { return F32{v[1], v[0], v[3], v[2]}; }
INLINE F64 neighbours(F64 v) { return F64{v[1], v[0]}; }
#endif

// A type of number in memory: the type and the vector of its arithmetic, how many it works on at once, and the ways in and out.
template <class T>
struct Number {  // half precision, where the machine has no instruction for it
    using C = float;
    using V = F32;
    static constexpr int64_t LANES = BYTES / 4;
    INLINE V load(const T* x) {
        V v;
        for (int64_t i = 0; i < LANES; i++) v[i] = widen(x[i]);
        return v;
    }
    INLINE void store(T* y, V v) {
        for (int64_t i = 0; i < LANES; i++) y[i] = narrow<T>(v[i]);
    }
};
template <>
struct Number<float> {
    using C = float;
    using V = F32;
    static constexpr int64_t LANES = BYTES / 4;
    INLINE V load(const float* x) { return read<V>(x); }
    INLINE void store(float* y, V v) { write(y, v); }
};
template <>
struct Number<double> {
    using C = double;
    using V = F64;
    static constexpr int64_t LANES = BYTES / 8;
    INLINE V load(const double* x) { return read<V>(x); }
    INLINE void store(double* y, V v) { write(y, v); }
};
#if BYTES > 16
template <>
struct Number<F16> {
    using C = float;
    using V = F32;
    static constexpr int64_t LANES = BYTES / 4;
#if BYTES == 64
    INLINE V load(const F16* x) { return V(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x))); }
    INLINE void store(F16* y, V v) { _mm256_storeu_si256((__m256i*)y, _mm512_cvtps_ph(__m512(v), _MM_FROUND_TO_NEAREST_INT)); }
#else
    INLINE V load(const F16* x) { return V(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)x))); }
    INLINE void store(F16* y, V v) { _mm_storeu_si128((__m128i*)y, _mm256_cvtps_ph(__m256(v), _MM_FROUND_TO_NEAREST_INT)); }
#endif
};
#endif

#if BYTES > 16
template <>
struct Number<Bf16> {
    using C = float;
    using V = F32;
    static constexpr int64_t LANES = BYTES / 4;
    INLINE V load(const Bf16* x) {
#if BYTES == 64
        return V(U32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x))) << 16);
#else
        return V(U32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)x))) << 16);
#endif
    }
    INLINE void store(Bf16* y, V v) {
        const U32 u = U32(v), half = v == v ? (u + 0x7fffu + ((u >> 16) & 1u)) >> 16 : (u >> 16) | 0x40u;
#if BYTES == 64
        _mm256_storeu_si256((__m256i*)y, _mm512_cvtepi32_epi16(__m512i(half)));
#else
        _mm_storeu_si128((__m128i*)y, _mm_packus_epi32(_mm256_castsi256_si128(__m256i(half)), _mm256_extracti128_si256(__m256i(half), 1)));
#endif
    }
};
#endif

// Two bfloat16 in one 32-bit word: no lane ever changes its width, which costs more than the arithmetic.
INLINE F32 low(U32 words) { return F32(words << 16); }
INLINE F32 high(U32 words) { return F32(words & 0xffff0000u); }
INLINE U32 rounded(F32 v) {  // to nearest even, in the upper half; a NaN stays one, since its lower half is zero (see `tidy`)
    const U32 u = U32(v);
    return u + 0x7fffu + ((u >> 16) & 1u);
}
INLINE U32 words(F32 low, F32 high) {
#if BYTES == 32
    return U32(_mm256_blend_epi16(__m256i(rounded(low) >> 16), __m256i(rounded(high)), 0xaa));
#else
    return (rounded(low) >> 16) | (rounded(high) & 0xffff0000u);
#endif
}
