// The rotation of one row (the channels of one head of one token), and the loops over rows. Included like vectors.h, after it.

// ---------------------------------------------------------------------------------------------- one row

// Each way has `prepare`, which arranges a row of the table once for all heads of a token (or not at all), and `turn`.

// Pairs (i, i + pairs). To turn back is to turn (b, a) in place of (a, b), so `inverse` costs nothing.
template <class T>
struct Half {
    using N = Number<T>;
    using C = typename N::C;
    static constexpr bool PREPARED = false;
    INLINE void prepare(const C*, const C*, C, int64_t, C*, C*) {}

    template <class X>
    INLINE void step(const X* a, const X* b, T* to_a, T* to_b, const C* c, const C* s) {
        using V = typename N::V;
        const V x = Number<X>::load(a), y = Number<X>::load(b), cos = read<V>(c), sin = read<V>(s);
        N::store(to_a, fma(-y, sin, x * cos));
        N::store(to_b, fma(x, sin, y * cos));
    }
    template <class X>
    INLINE void turn(const X* x, T* y, const C* c, const C* s, int64_t pairs, bool inverse) {
        const int64_t a = inverse ? pairs : 0, b = pairs - a;
        int64_t i = 0;
        for (; i + N::LANES <= pairs; i += N::LANES) step(x + a + i, x + b + i, y + a + i, y + b + i, c + i, s + i);
        if (const int64_t rest = pairs - i) {
            X from[2][N::LANES] = {};
            T to[2][N::LANES];
            C table[2][N::LANES] = {};
            memcpy(from[0], x + a + i, rest * sizeof(X)), memcpy(from[1], x + b + i, rest * sizeof(X));
            memcpy(table[0], c + i, rest * sizeof(C)), memcpy(table[1], s + i, rest * sizeof(C));
            step(from[0], from[1], to[0], to[1], table[0], table[1]);
            memcpy(y + a + i, to[0], rest * sizeof(T)), memcpy(y + b + i, to[1], rest * sizeof(T));
        }
    }
};

// Pairs (2i, 2i + 1): every channel times its cosine, plus its neighbour times a sine with the sign of its place.
template <class T>
struct Interleaved {
    using N = Number<T>;
    using C = typename N::C;
    static constexpr bool PREPARED = true;
    INLINE void prepare(const C* cos, const C* sin, C sign, int64_t pairs, C* c, C* s) {
        for (int64_t i = 0; i < pairs; i++) {
            c[2 * i] = c[2 * i + 1] = cos[i];
            s[2 * i] = -sign * sin[i], s[2 * i + 1] = sign * sin[i];
        }
    }
    template <class X>
    INLINE void step(const X* x, T* y, const C* c, const C* s) {
        using V = typename N::V;
        const V v = Number<X>::load(x);
        N::store(y, fma(neighbours(v), read<V>(s), v * read<V>(c)));
    }
    template <class X>
    INLINE void turn(const X* x, T* y, const C* c, const C* s, int64_t pairs, bool) {
        int64_t i = 0;
        for (; i + N::LANES <= 2 * pairs; i += N::LANES) step(x + i, y + i, c + i, s + i);
        if (const int64_t rest = 2 * pairs - i) {
            X from[N::LANES] = {};
            T to[N::LANES];
            memcpy(from, x + i, rest * sizeof(X));
            step(from, to, c + i, s + i);  // a prepared table may be read to the end of a vector
            memcpy(y + i, to, rest * sizeof(T));
        }
    }
};

// bfloat16 by words. A word holds neighbours of the same half, so c and s hold the even pairs first and then the odd ones.
struct HalfWords {
    static constexpr bool PREPARED = true;
    INLINE void prepare(const float* cos, const float* sin, float, int64_t pairs, float* c, float* s) {
        const int64_t n = pairs / 2;
        for (int64_t i = 0; i < n; i++) {
            c[i] = tidy(cos[2 * i]), c[i + n] = tidy(cos[2 * i + 1]);
            s[i] = tidy(sin[2 * i]), s[i + n] = tidy(sin[2 * i + 1]);
        }
    }
    INLINE void step(const Bf16* a, const Bf16* b, Bf16* to_a, Bf16* to_b, const float* c, const float* s, int64_t n) {
        const U32 u = read<U32>(a), v = read<U32>(b);
        const F32 c0 = read<F32>(c), c1 = read<F32>(c + n), s0 = read<F32>(s), s1 = read<F32>(s + n);
        const F32 u0 = low(u), u1 = high(u), v0 = low(v), v1 = high(v);
        write(to_a, words(fma(-v0, s0, u0 * c0), fma(-v1, s1, u1 * c1)));
        write(to_b, words(fma(u0, s0, v0 * c0), fma(u1, s1, v1 * c1)));
    }
    INLINE void turn(const Bf16* x, Bf16* y, const float* c, const float* s, int64_t pairs, bool inverse) {
        constexpr int64_t LANES = BYTES / 4;
        const int64_t n = pairs / 2, a = inverse ? pairs : 0, b = pairs - a;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) step(x + a + 2 * i, x + b + 2 * i, y + a + 2 * i, y + b + 2 * i, c + i, s + i, n);
        if (const int64_t rest = n - i) {
            Bf16 last[2][2 * LANES] = {};
            memcpy(last[0], x + a + 2 * i, rest * 4), memcpy(last[1], x + b + 2 * i, rest * 4);
            step(last[0], last[1], last[0], last[1], c + i, s + i, n);
            memcpy(y + a + 2 * i, last[0], rest * 4), memcpy(y + b + 2 * i, last[1], rest * 4);
        }
    }
};

// Here the two halves of a word are a pair.
struct InterleavedWords {
    static constexpr bool PREPARED = true;
    INLINE void prepare(const float* cos, const float* sin, float sign, int64_t pairs, float* c, float* s) {
        for (int64_t i = 0; i < pairs; i++) c[i] = tidy(cos[i]), s[i] = tidy(sign * sin[i]);
    }
    INLINE void turn(const Bf16* x, Bf16* y, const float* c, const float* s, int64_t pairs, bool) {
        constexpr int64_t LANES = BYTES / 4;
        int64_t i = 0;
        for (; i + LANES <= pairs; i += LANES) write(y + 2 * i, step(read<U32>(x + 2 * i), c + i, s + i));
        if (const int64_t rest = pairs - i) {
            Bf16 last[2 * LANES] = {};
            memcpy(last, x + 2 * i, rest * 4);
            write(last, step(read<U32>(last), c + i, s + i));
            memcpy(y + 2 * i, last, rest * 4);
        }
    }
    INLINE U32 step(U32 w, const float* c, const float* s) {
        const F32 a = low(w), b = high(w), cos = read<F32>(c), sin = read<F32>(s);
        return words(fma(-b, sin, a * cos), fma(a, sin, b * cos));
    }
};

// ---------------------------------------------------------------------------------------------- the norm before

// RMSNorm of a row, in the type of the arithmetic: x / sqrt(mean(x²) + ε) · weight. Summed in one order on every machine.
template <class T, class C>
INLINE void norm_row(const T* x, C* out, const C* weight, C epsilon, int64_t channels) {
    using N = Number<T>;
    using V = typename N::V;
    constexpr int64_t SUMS = 16, PARTS = SUMS / N::LANES;
    V parts[PARTS] = {};
    int64_t i = 0;
    for (; i + SUMS <= channels; i += SUMS)
        for (int64_t p = 0; p < PARTS; p++) {
            const V v = N::load(x + i + p * N::LANES);
            write(out + i + p * N::LANES, v);
            parts[p] += v * v;
        }
    C sums[SUMS];
    memcpy(sums, parts, sizeof sums);
    for (int64_t half = SUMS / 2; half; half /= 2)
        for (int64_t lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];
    C sum = sums[0];
    for (; i < channels; i++) out[i] = widen(x[i]), sum += out[i] * out[i];
    const C scale = C(1) / std::sqrt(sum / C(channels) + epsilon);
    for (i = 0; i < channels; i++) out[i] = out[i] * scale * weight[i];
}

// ---------------------------------------------------------------------------------------------- past the caches

// Copies a row without reading its target into the caches first. Target and length are multiples of 64 bytes.
INLINE void stream_row(void* to, const void* from, int64_t bytes) {
#if BYTES == 64
    for (int64_t i = 0; i < bytes; i += 64) _mm512_stream_si512((__m512i*)((char*)to + i), _mm512_loadu_si512((const char*)from + i));
#elif BYTES == 32
    for (int64_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((__m256i*)((char*)to + i), _mm256_loadu_si256((const __m256i*)((const char*)from + i)));
#else
    memcpy(to, from, bytes);
#endif
}

// ---------------------------------------------------------------------------------------------- the loops

// `Way` is one of the structures above. An item is a block of tokens, with all heads that share its rows of the table.
template <class Way, class T, bool NORM, bool STREAM>
INLINE void rotate_items(const ropewalk_rotation& r, int64_t begin, int64_t end) {
    using C = typename Number<T>::C;
    const int64_t size = block_of(r), blocks = (r.tokens + size - 1) / size;
    const int64_t outer_heads = r.table_head ? r.heads : 1, inner_heads = r.table_head ? 1 : r.heads;
    const int64_t pairs = r.pairs, first = r.first, rest = r.first + 2 * r.pairs, channels = r.channels;
    const bool inverse = r.inverse, copy_first = r.x != r.y && first && (pairs || !STREAM), copy_rest = r.x != r.y && rest < channels;
    // Whichever of heads and tokens lies closer together in memory is walked in the inner loop: all heads of one token, or a run of tokens.
    const bool heads_inside = r.tokens == 1 || r.x_head < r.x_token;
    const int64_t rows = heads_inside ? 1 : Way::PREPARED && SCRATCH / (2 * pairs) < size ? SCRATCH / (2 * pairs) : size;
    // The machine's own prefetching stops at the end of a page, so of a long input what comes some rows later is asked for.
    const int64_t ahead = 8, ahead_bytes = r.tokens < 2048 ? 0 : channels * int64_t(sizeof(T));
    const int64_t row = Way::PREPARED ? 2 * pairs : r.table_token;  // from one token's row of the table to the next
    alignas(64) C c[Way::PREPARED ? SCRATCH + 16 : 1];
    alignas(64) C s[Way::PREPARED ? SCRATCH + 16 : 1];
    alignas(64) T line[STREAM ? ROPEWALK_MAX_CHANNELS : 1];
    alignas(64) C normed[NORM ? ROPEWALK_MAX_CHANNELS : 1];

    for (int64_t item = begin; item < end; item++) {
        const int64_t block = item % blocks, head = item / blocks % outer_heads, batch = item / blocks / outer_heads;
        const int64_t last = (block + 1) * size < r.tokens ? (block + 1) * size : r.tokens;
        const T* x_item = static_cast<const T*>(r.x) + batch * r.x_batch + head * r.x_head;
        T* y_item = static_cast<T*>(r.y) + batch * r.y_batch + head * r.y_head;
        const C* cos = static_cast<const C*>(r.cos) + batch * r.table_batch + head * r.table_head;
        const C* sin = static_cast<const C*>(r.sin) + batch * r.table_batch + head * r.table_head;
        for (int64_t from = block * size; from < last; from += rows) {
            const int64_t count = from + rows < last ? rows : last - from;
            for (int64_t t = 0; Way::PREPARED && t < count; t++)
                Way::prepare(cos + (from + t) * r.table_token, sin + (from + t) * r.table_token, inverse ? C(-1) : C(1), pairs,
                             c + t * row, s + t * row);
            const int64_t outside = heads_inside ? 1 : inner_heads, inside = heads_inside ? inner_heads : count;
            const int64_t x_in = heads_inside ? r.x_head : r.x_token, y_in = heads_inside ? r.y_head : r.y_token;
            const int64_t table_in = heads_inside ? 0 : row;
            for (int64_t o = 0; o < outside; o++) {
                const T* x = x_item + from * r.x_token + o * r.x_head;
                T* y = y_item + from * r.y_token + o * r.y_head;
                const C* c_row = Way::PREPARED ? c : cos + from * row;
                const C* s_row = Way::PREPARED ? s : sin + from * row;
                for (int64_t i = 0; i < inside; i++, x += x_in, y += y_in, c_row += table_in, s_row += table_in) {
                    const int64_t t = heads_inside ? from : from + i, h = heads_inside ? i : o;
                    if (r.slots) y = y_item + r.slots[batch * r.slot_batch + t * r.slot_token] * r.y_token + h * r.y_head;
                    T* to = STREAM ? line : y;
                    for (int64_t b = 0; b < ahead_bytes; b += 64) __builtin_prefetch(reinterpret_cast<const char*>(x + ahead * x_in) + b);
                    if constexpr (NORM) {
                        norm_row(x, normed, static_cast<const C*>(r.weight), C(r.epsilon), channels);
                        Way::turn(normed + first, to + first, c_row, s_row, pairs, inverse);
                        for (int64_t j = 0; j < first; j++) to[j] = narrow<T>(normed[j]);
                        for (int64_t j = rest; j < channels; j++) to[j] = narrow<T>(normed[j]);
                    } else {
                        Way::turn(x + first, to + first, c_row, s_row, pairs, inverse);
                        if (copy_first) memcpy(to, x, size_t(first) * sizeof(T));
                        if (copy_rest) memcpy(to + rest, x + rest, size_t(channels - rest) * sizeof(T));
                    }
                    if constexpr (STREAM) stream_row(y, pairs ? line : x, channels * int64_t(sizeof(T)));
                }
            }
        }
    }
}

// Words serve bfloat16 as it is; behind a norm the row is float already.
template <class Way, class Behind, class T>
INLINE void choose_way(const ropewalk_rotation& r, int64_t begin, int64_t end) {
    if (r.weight) return rotate_items<Behind, T, true, false>(r, begin, end);
    if (!r.stream) return rotate_items<Way, T, false, false>(r, begin, end);
    rotate_items<Way, T, false, true>(r, begin, end);
#if BYTES > 16
    _mm_sfence();
#endif
}

TARGET void rotate(const ropewalk_rotation& r, int64_t begin, int64_t end) {
    const bool half = r.layout == ROPEWALK_HALF;
#define ROPEWALK_WAYS(T) half ? choose_way<Half<T>, Half<T>, T>(r, begin, end) : choose_way<Interleaved<T>, Interleaved<T>, T>(r, begin, end)
    switch (r.dtype) {
        case ROPEWALK_F32: return ROPEWALK_WAYS(float);
        case ROPEWALK_F64: return ROPEWALK_WAYS(double);
        case ROPEWALK_F16: return ROPEWALK_WAYS(F16);
        case ROPEWALK_BF16:
            if (!half) return choose_way<InterleavedWords, Interleaved<Bf16>, Bf16>(r, begin, end);
            if (r.pairs % 2 || !r.pairs) return choose_way<Half<Bf16>, Half<Bf16>, Bf16>(r, begin, end);
            return choose_way<HalfWords, Half<Bf16>, Bf16>(r, begin, end);
    }
#undef ROPEWALK_WAYS
}
