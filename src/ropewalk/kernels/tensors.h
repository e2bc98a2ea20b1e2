// What the operators and the short calls share: tensors as they arrive from torch, the checks, and the run.
//
// libtorch exports plain C functions for extensions that must outlive its releases. They are looked up at run time in the libtorch that
// is loaded already, so that one binary serves every Python and every torch from 2.10 on, and building it needs a compiler alone.
#pragma once
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#include <sys/mman.h>
#endif
#include <stdint.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

#include "rotate.h"

#if defined(_WIN32)
#define ROPEWALK_EXPORT __declspec(dllexport)
#else
#define ROPEWALK_EXPORT __attribute__((visibility("default")))
#endif

namespace ropewalk {
using Value = uint64_t;  // how torch hands over an argument: a number's bits, or a pointer
using Handle = void*;    // a tensor, owned by whoever received it
using Error = int32_t;

#define ROPEWALK_TORCH_FUNCTIONS(F)                                                                                          \
    F(Error, aoti_torch_get_data_ptr, (Handle, void**))                                                                      \
    F(Error, aoti_torch_get_dim, (Handle, int64_t*))                                                                         \
    F(Error, aoti_torch_get_sizes, (Handle, int64_t**))                                                                      \
    F(Error, aoti_torch_get_strides, (Handle, int64_t**))                                                                    \
    F(Error, aoti_torch_get_dtype, (Handle, int32_t*))                                                                       \
    F(Error, aoti_torch_empty_strided, (int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*))        \
    F(Error, aoti_torch_delete_tensor_object, (Handle))                                                                      \
    F(Error, aoti_torch_library_init_fragment, (const char*, const char*, uint32_t, Handle*))                                \
    F(Error, aoti_torch_library_init_impl, (const char*, const char*, const char*, uint32_t, Handle*))                       \
    F(Error, aoti_torch_library_def, (Handle, const char*))                                                                  \
    F(Error, aoti_torch_library_impl, (Handle, const char*, void (*)(Value*, uint64_t, uint64_t)))                           \
    F(Error, torch_parallel_for, (int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*))                      \
    F(bool, aoti_torch_grad_mode_is_enabled, ())                                                                             \
    F(int32_t, aoti_torch_dtype_float32, ())                                                                                 \
    F(int32_t, aoti_torch_dtype_float64, ())                                                                                 \
    F(int32_t, aoti_torch_dtype_bfloat16, ())                                                                                \
    F(int32_t, aoti_torch_dtype_float16, ())                                                                                 \
    F(int32_t, aoti_torch_dtype_int64, ())
#define ROPEWALK_DECLARE(type, name, arguments) inline type(*name) arguments;
ROPEWALK_TORCH_FUNCTIONS(ROPEWALK_DECLARE)

// A macro, so that a message costs nothing until it is needed.
#define CHECK(condition, message)                                                                   \
    do {                                                                                            \
        if (!(condition)) throw std::invalid_argument(std::string("ropewalk: ") + (message));       \
    } while (0)

// ---------------------------------------------------------------------------------------------- tensors

// What a kernel needs to know of a tensor.
struct View {
    int64_t dim = 0;
    int64_t *size = nullptr, *stride = nullptr;
    int32_t dtype = 0;
    void* data = nullptr;

    int64_t elements() const {
        int64_t n = 1;
        for (int64_t i = 0; i < dim; i++) n *= size[i];
        return n;
    }
    std::string shape() const {
        std::string text = "(";
        for (int64_t i = 0; i < dim; i++) text += (i ? ", " : "") + std::to_string(size[i]);
        return text + ")";
    }
};

// A tensor that an operator received, and gives up when it returns.
struct Tensor : View {
    Handle handle = nullptr;

    explicit Tensor(Handle h) : handle(h) {
        aoti_torch_get_dim(h, &dim);
        aoti_torch_get_sizes(h, &size);
        aoti_torch_get_strides(h, &stride);
        aoti_torch_get_dtype(h, &dtype);
        aoti_torch_get_data_ptr(h, &data);
    }
    Tensor(const Tensor&) = delete;
    Tensor(Tensor&& other) noexcept : View(other), handle(other.handle) { other.handle = nullptr; }
    ~Tensor() {
        if (handle) aoti_torch_delete_tensor_object(handle);
    }
    Value release() {
        Handle h = handle;
        handle = nullptr;
        return reinterpret_cast<Value>(h);
    }
};

inline int32_t kernel_dtype(int32_t dtype) {
    static const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(), aoti_torch_dtype_bfloat16(),
                                    aoti_torch_dtype_float16()};
    for (int32_t i = 0; i < 4; i++)
        if (known[i] == dtype) return i;
    return -1;
}

constexpr int64_t ITEM_BYTES[] = {4, 8, 2, 2};
constexpr int64_t HUGE_PAGE = 2 << 20;

// Fresh memory comes in pages of 4 KiB that the kernel clears one fault at a time, which costs more than the rotation.
inline void ask_for_huge_pages(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t from = (reinterpret_cast<uintptr_t>(data) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t to = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / HUGE_PAGE * HUGE_PAGE;
    if (to >= from + 2 * HUGE_PAGE) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

inline Tensor empty(int64_t dim, const int64_t* size, const int64_t* stride, int32_t dtype, int64_t item_bytes) {
    Handle h;
    CHECK(aoti_torch_empty_strided(dim, size, stride, dtype, 0, 0, &h) == 0, "no memory for the result");
    Tensor t(h);
    ask_for_huge_pages(t.data, t.elements() * item_bytes);
    return t;
}

// Whether the axes, in some order, follow each other without gaps or overlaps; those of size 1 do not matter.
inline bool is_dense(const View& x) {
    int64_t order[4], count = 0, expected = 1;
    for (int64_t i = 0; i < x.dim; i++) {
        if (x.size[i] == 1) continue;
        int64_t j = count++;
        for (; j > 0 && x.stride[order[j - 1]] > x.stride[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    for (int64_t j = 0; j < count; expected *= x.size[order[j++]])
        if (x.stride[order[j]] != expected) return false;
    return true;
}

// As torch.empty_like: the strides of x where it is dense, else dense ones in the order of its strides, by torch's own rules.
inline Tensor empty_like(const View& x, int64_t item_bytes) {
    if (!x.elements() || is_dense(x)) return empty(x.dim, x.size, x.stride, x.dtype, item_bytes);
    int64_t order[4], stride[4], expected = 1;
    for (int64_t i = 0; i < x.dim; i++) order[i] = x.dim - 1 - i;
    for (int64_t i = 1; i < x.dim; i++)
        for (int64_t mine = i, other = i - 1; other >= 0; other--) {
            const int64_t a = order[other], b = order[mine];
            if (!x.stride[a] || !x.stride[b]) continue;  // repeated along one: their order is open
            if (x.stride[a] < x.stride[b]) break;
            if (x.stride[a] == x.stride[b] && x.size[a] <= x.size[b]) continue;
            order[other] = b, order[mine] = a, mine = other;
        }
    for (int64_t j = 0; j < x.dim; j++) stride[order[j]] = expected, expected *= x.size[order[j]] > 1 ? x.size[order[j]] : 1;
    return empty(x.dim, x.size, stride, x.dtype, item_bytes);
}

// ---------------------------------------------------------------------------------------------- rotations

struct Turn {
    int64_t layout, seq_dim, first;
    bool inverse;
};

// Which axes of x are batch, heads and tokens: the tokens' is named, the others keep their order, and missing ones have size 1.
struct Axes {
    int64_t batch = -1, heads = -1, tokens = -1;
    Axes(const View& x, int64_t seq_dim) {
        CHECK(x.dim >= 2 && x.dim <= 4, "x has 2 to 4 axes, got shape " + x.shape());
        tokens = seq_dim < 0 ? seq_dim + x.dim : seq_dim;
        CHECK(tokens >= 0 && tokens < x.dim - 1, "seq_dim names an axis of x other than the last, got " + std::to_string(seq_dim));
        for (int64_t i = x.dim - 2; i >= 0; i--)
            if (i != tokens) (heads < 0 ? heads : batch) = i;
    }
};

inline int64_t size_of(const View& t, int64_t axis) { return axis < 0 ? 1 : t.size[axis]; }
inline int64_t stride_of(const View& t, int64_t axis) { return axis < 0 || t.size[axis] == 1 ? 0 : t.stride[axis]; }

// Whether two tensors lie in different memory, from the first number of each to its last.
inline bool apart(const View& a, const View& b) {
    const View* const both[] = {&a, &b};
    uintptr_t from[2], to[2];
    for (int t = 0; t < 2; t++) {
        int64_t last = 0;
        for (int64_t i = 0; i < both[t]->dim; i++) last += (both[t]->size[i] - 1) * both[t]->stride[i];
        from[t] = reinterpret_cast<uintptr_t>(both[t]->data);
        to[t] = from[t] + uintptr_t((last + 1) * ITEM_BYTES[kernel_dtype(both[t]->dtype)]);
    }
    return !a.elements() || !b.elements() || to[0] <= from[1] || to[1] <= from[0];
}

// Rows of x to rows of y, none of whose channels turns.
inline ropewalk_rotation describe_copy(const View& x, const View& y, const Axes& axes) {
    ropewalk_rotation r{};
    r.dtype = kernel_dtype(x.dtype);
    CHECK(r.dtype >= 0, "x is float32, float64, bfloat16 or float16");
    r.batch = size_of(x, axes.batch), r.heads = size_of(x, axes.heads), r.tokens = x.size[axes.tokens], r.channels = x.size[x.dim - 1];
    CHECK(r.channels <= ROPEWALK_MAX_CHANNELS, "a head has at most 2048 channels, got " + std::to_string(r.channels));
    r.first = r.channels;
    for (const View* t : {&x, &y}) {
        CHECK(r.channels <= 1 || t->stride[t->dim - 1] == 1, "the last axis is contiguous");
        CHECK(t->data || !t->elements(), "a tensor has no memory");
    }
    for (int64_t i = 0; i < y.dim; i++) CHECK(y.size[i] <= 1 || y.stride[i], "rows of the output share their memory");
    r.x = x.data, r.y = y.data;
    r.x_batch = stride_of(x, axes.batch), r.x_head = stride_of(x, axes.heads), r.x_token = stride_of(x, axes.tokens);
    r.y_batch = stride_of(y, axes.batch), r.y_head = stride_of(y, axes.heads), r.y_token = stride_of(y, axes.tokens);

    const bool in_place = x.data == y.data && r.x_batch == r.y_batch && r.x_head == r.y_head && r.x_token == r.y_token;
    CHECK(in_place || apart(x, y), "the output is the input itself, or lies apart from it");

    // Large outputs that do not overwrite their input are written past the caches, in whole lines of 64 bytes.
    const int64_t bytes = ITEM_BYTES[r.dtype];
    const int64_t all = reinterpret_cast<intptr_t>(y.data) | (r.y_batch * bytes) | (r.y_head * bytes) | (r.y_token * bytes) | (r.channels * bytes);
    r.stream = x.data != y.data && x.elements() * bytes >= (8 << 20) && all % 64 == 0;
    return r;
}

inline ropewalk_rotation describe(const View& x, const View& y, const View& cos, const View& sin, const Turn& turn) {
    const Axes axes(x, turn.seq_dim);
    ropewalk_rotation r = describe_copy(x, y, axes);
    const int32_t table = r.dtype == ROPEWALK_F64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
    CHECK(cos.dtype == table && sin.dtype == table, r.dtype == ROPEWALK_F64 ? "cos and sin are float64 for float64 x"
                                                                             : "cos and sin are float32");
    CHECK(turn.layout == ROPEWALK_HALF || turn.layout == ROPEWALK_INTERLEAVED, "layout is 0 (half) or 1 (interleaved)");
    CHECK(cos.dim == sin.dim && cos.dim >= 2 && cos.dim <= 4, "cos and sin have 2 to 4 axes, got " + cos.shape() + " and " + sin.shape());
    for (int64_t i = 0; i < cos.dim; i++)
        CHECK(cos.size[i] == sin.size[i], "cos and sin have different shapes: " + cos.shape() + " and " + sin.shape());

    r.pairs = cos.size[cos.dim - 1], r.first = turn.first;
    CHECK(r.pairs >= 1 && r.pairs <= ROPEWALK_MAX_PAIRS, "1 to 1024 pairs turn, got " + std::to_string(r.pairs));
    CHECK(r.first >= 0 && r.first + 2 * r.pairs <= r.channels,
          "channels " + std::to_string(r.first) + " to " + std::to_string(r.first + 2 * r.pairs) + " turn, but x has " + std::to_string(r.channels));

    // The table's axes: all of x's, or (tokens, pairs), or (batch, tokens, pairs).
    int64_t batch = -1, heads = -1, tokens = cos.dim - 2;
    if (cos.dim == x.dim) {
        batch = axes.batch, heads = axes.heads, tokens = axes.tokens;
    } else if (cos.dim == 3) {
        CHECK(axes.batch == 0 || (axes.batch < 0 && axes.heads == 0), "batched cos and sin need the batch as first axis of x");
        (axes.batch == 0 ? batch : heads) = 0;
    } else {
        CHECK(cos.dim == 2, "cos and sin " + cos.shape() + " do not fit x " + x.shape());
    }
    const bool fits = cos.size[tokens] == r.tokens && (size_of(cos, batch) == 1 || size_of(cos, batch) == r.batch) &&
                      (size_of(cos, heads) == 1 || size_of(cos, heads) == r.heads);
    CHECK(fits, "cos and sin " + cos.shape() + " do not fit x " + x.shape());
    r.table_batch = stride_of(cos, batch), r.table_head = stride_of(cos, heads), r.table_token = stride_of(cos, tokens);
    const bool same = r.table_batch == stride_of(sin, batch) && r.table_head == stride_of(sin, heads) && r.table_token == stride_of(sin, tokens);
    const bool packed = r.pairs == 1 || (cos.stride[cos.dim - 1] == 1 && sin.stride[sin.dim - 1] == 1);
    CHECK(same && packed, "cos and sin have the same strides, and their last axis is contiguous");
    CHECK((cos.data && sin.data) || !cos.elements(), "cos or sin has no memory");

    r.cos = cos.data, r.sin = sin.data, r.layout = int32_t(turn.layout), r.inverse = turn.inverse;
    return r;
}

// The same with RMSNorm before it. The weight, whatever its dtype, is read into `numbers`, in the type of the arithmetic.
inline ropewalk_rotation describe_norm(const View& x, const View& y, const View& cos, const View& sin, const Turn& turn, const View& weight,
                                       double epsilon, double (&numbers)[ROPEWALK_MAX_CHANNELS]) {
    ropewalk_rotation r = describe(x, y, cos, sin, turn);
    const int32_t dtype = kernel_dtype(weight.dtype);
    CHECK(weight.dim == 1 && weight.size[0] == r.channels && dtype >= 0, "weight has one number a channel");
    CHECK(weight.data || !r.channels, "weight has no memory");
    for (int64_t i = 0; i < r.channels; i++) {
        const double w = ropewalk_read(weight.data, i * weight.stride[0], dtype);
        r.dtype == ROPEWALK_F64 ? numbers[i] = w : reinterpret_cast<float*>(numbers)[i] = float(w);
    }
    r.weight = numbers, r.epsilon = epsilon, r.stream = 0;
    return r;
}

// Rows of y that tokens go to, in place of 0, 1, 2 …: slots (tokens) or (batch, tokens).
inline void send_to(ropewalk_rotation& r, const View& slots, const Axes& axes, int64_t length) {
    CHECK(slots.dtype == aoti_torch_dtype_int64() && (slots.dim == 1 || slots.dim == 2), "slots are int64 and have 1 or 2 axes");
    const int64_t batch = slots.dim == 2 ? 0 : -1, tokens = slots.dim - 1;
    CHECK(slots.size[tokens] == r.tokens && (batch < 0 || (axes.batch == 0 && slots.size[0] == r.batch)),
          "slots " + slots.shape() + " do not fit " + std::to_string(r.batch) + " × " + std::to_string(r.tokens) + " tokens");
    CHECK(slots.data || !slots.elements(), "slots have no memory");
    r.slots = static_cast<const int64_t*>(slots.data), r.slot_batch = stride_of(slots, batch), r.slot_token = stride_of(slots, tokens);
    for (int64_t b = 0; b < (r.slot_batch ? r.batch : 1); b++)
        for (int64_t s = 0; s < r.tokens; s++) {
            const int64_t slot = r.slots[b * r.slot_batch + s * r.slot_token];
            CHECK(slot >= 0 && slot < length,
                  "slots name rows 0 to " + std::to_string(length - 1) + " of the cache, got " + std::to_string(slot));
        }
}

struct Work {
    const ropewalk_rotation* rotations;
    int64_t count, items[2];
};
inline void run_range(int64_t begin, int64_t end, void* context) {
    const Work& w = *static_cast<Work*>(context);
    int64_t offset = 0;
    for (int64_t i = 0; i < w.count; i++) {
        const int64_t from = begin > offset ? begin - offset : 0, to = end - offset < w.items[i] ? end - offset : w.items[i];
        if (from < to) ropewalk_rotate(&w.rotations[i], from, to);
        offset += w.items[i];
    }
}
inline void run(std::initializer_list<ropewalk_rotation> rotations) {
    Work w{rotations.begin(), int64_t(rotations.size()), {0, 0}};
    int64_t total = 0, bytes = 0;
    for (int64_t i = 0; i < w.count; i++) {
        const ropewalk_rotation& r = w.rotations[i];
        if (!r.batch || !r.heads || !r.tokens) continue;
        total += w.items[i] = ropewalk_items(&r);
        bytes += r.batch * r.heads * r.tokens * r.channels * ITEM_BYTES[r.dtype];
    }
    if (total > 1 && bytes > (256 << 10))
        torch_parallel_for(0, total, 1, run_range, &w);
    else
        run_range(0, total, &w);
}

// k turned, and v as it is, into the rows `slots` of two caches that are laid out like them but for the number of tokens.
inline void to_cache(const View& k, const View& v, const View& cos, const View& sin, const Turn& turn, const View& k_cache,
                     const View& v_cache, const View& slots) {
    const View* pairs[][2] = {{&k, &k_cache}, {&v, &v_cache}};
    const Axes axes(k, turn.seq_dim);
    for (const auto& [x, cache] : pairs) {
        bool fits = x->dim == k.dim && cache->dim == k.dim && cache->dtype == x->dtype;
        for (int64_t i = 0; fits && i < k.dim; i++) fits = i == axes.tokens || x->size[i] == cache->size[i];
        CHECK(fits, "a cache has the shape and dtype of what goes into it, but for the number of tokens: " + x->shape() + ", got " + cache->shape());
        CHECK(kernel_dtype(x->dtype) >= 0, "x is float32, float64, bfloat16 or float16");
        CHECK(apart(*x, *cache), "what goes into a cache lies apart from it");
    }
    CHECK(k.size[axes.tokens] == v.size[axes.tokens] && k_cache.size[axes.tokens] == v_cache.size[axes.tokens], "k and v, and their caches, have as many tokens");
    ropewalk_rotation turned = describe(k, k_cache, cos, sin, turn);
    ropewalk_rotation copied = describe_copy(v, v_cache, axes);
    for (ropewalk_rotation* r : {&turned, &copied}) send_to(*r, slots, axes, k_cache.size[axes.tokens]);
    run({turned, copied});
}
}  // namespace ropewalk
