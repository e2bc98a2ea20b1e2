// The kernels as torch operators, without torch's headers and without linking to it.
//
// libtorch exports plain C functions for extensions that must outlive its releases. They are looked up at run time in the libtorch that
// is loaded already, so that one binary serves every Python and every torch from 2.10 on, and building it needs a compiler alone.
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

namespace {
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
    F(int32_t, aoti_torch_dtype_float32, ())                                                                                 \
    F(int32_t, aoti_torch_dtype_float64, ())                                                                                 \
    F(int32_t, aoti_torch_dtype_bfloat16, ())                                                                                \
    F(int32_t, aoti_torch_dtype_float16, ())                                                                                 \
    F(int32_t, aoti_torch_dtype_int64, ())
#define ROPEWALK_DECLARE(type, name, arguments) type(*name) arguments;
ROPEWALK_TORCH_FUNCTIONS(ROPEWALK_DECLARE)

// A macro, so that a message costs nothing until it is needed.
#define CHECK(condition, message)                                                                   \
    do {                                                                                            \
        if (!(condition)) throw std::invalid_argument(std::string("ropewalk: ") + (message));       \
    } while (0)

// ---------------------------------------------------------------------------------------------- tensors

// A tensor that an operator received, and gives up when it returns.
struct Tensor {
    Handle handle = nullptr;
    int64_t dim = 0;
    int64_t *size = nullptr, *stride = nullptr;
    int32_t dtype = 0;
    void* data = nullptr;

    explicit Tensor(Handle h) : handle(h) {
        aoti_torch_get_dim(h, &dim);
        aoti_torch_get_sizes(h, &size);
        aoti_torch_get_strides(h, &stride);
        aoti_torch_get_dtype(h, &dtype);
        aoti_torch_get_data_ptr(h, &data);
    }
    Tensor(const Tensor&) = delete;
    Tensor(Tensor&& other) noexcept { *this = other, other.handle = nullptr; }
    ~Tensor() {
        if (handle) aoti_torch_delete_tensor_object(handle);
    }
    Value release() {
        Handle h = handle;
        handle = nullptr;
        return reinterpret_cast<Value>(h);
    }
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

   private:
    Tensor& operator=(const Tensor&) = default;
};

Tensor tensor(Value v) { return Tensor(reinterpret_cast<Handle>(v)); }
double real(Value v) {
    double d;
    __builtin_memcpy(&d, &v, 8);
    return d;
}

int32_t kernel_dtype(int32_t dtype) {
    static const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(), aoti_torch_dtype_bfloat16(),
                                    aoti_torch_dtype_float16()};
    for (int32_t i = 0; i < 4; i++)
        if (known[i] == dtype) return i;
    return -1;
}

constexpr int64_t ITEM_BYTES[] = {4, 8, 2, 2};
constexpr int64_t HUGE_PAGE = 2 << 20;

// Fresh memory comes in pages of 4 KiB that the kernel clears one fault at a time, which costs more than the rotation.
void ask_for_huge_pages(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t from = (reinterpret_cast<uintptr_t>(data) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t to = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / HUGE_PAGE * HUGE_PAGE;
    if (to >= from + 2 * HUGE_PAGE) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

Tensor empty(int64_t dim, const int64_t* size, const int64_t* stride, int32_t dtype, int64_t item_bytes) {
    Handle h;
    CHECK(aoti_torch_empty_strided(dim, size, stride, dtype, 0, 0, &h) == 0, "no memory for the result");
    Tensor t(h);
    ask_for_huge_pages(t.data, t.elements() * item_bytes);
    return t;
}

// As torch.empty_like: the same strides where x is dense, else row by row.
Tensor empty_like(const Tensor& x, int64_t item_bytes) {
    int64_t order[4], stride[4];
    for (int64_t i = 0; i < x.dim; i++) {  // axes, from the widest stride to the narrowest, in a stable order
        int64_t j = i;
        for (; j > 0 && x.stride[order[j - 1]] < x.stride[i] && x.size[i] > 1 && x.size[order[j - 1]] > 1; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    int64_t expected = 1;
    bool dense = true;
    for (int64_t j = x.dim - 1; j >= 0; j--) {
        const int64_t axis = order[j];
        dense = dense && (x.size[axis] == 1 || x.stride[axis] == expected);
        stride[axis] = expected;
        expected *= x.size[axis] > 1 ? x.size[axis] : 1;
    }
    if (!dense) {
        expected = 1;
        for (int64_t i = x.dim - 1; i >= 0; i--) stride[i] = expected, expected *= x.size[i] > 1 ? x.size[i] : 1;
        return empty(x.dim, x.size, stride, x.dtype, item_bytes);
    }
    return empty(x.dim, x.size, x.elements() ? stride : x.stride, x.dtype, item_bytes);
}

// ---------------------------------------------------------------------------------------------- rotations

struct Turn {
    int64_t layout, seq_dim, first;
    bool inverse;
};

// Which axes of x are batch, heads and tokens: the tokens' is named, the others keep their order, and missing ones have size 1.
struct Axes {
    int64_t batch = -1, heads = -1, tokens = -1;
    Axes(const Tensor& x, int64_t seq_dim) {
        CHECK(x.dim >= 2 && x.dim <= 4, "x has 2 to 4 axes, got shape " + x.shape());
        tokens = seq_dim < 0 ? seq_dim + x.dim : seq_dim;
        CHECK(tokens >= 0 && tokens < x.dim - 1, "seq_dim names an axis of x other than the last, got " + std::to_string(seq_dim));
        for (int64_t i = x.dim - 2; i >= 0; i--)
            if (i != tokens) (heads < 0 ? heads : batch) = i;
    }
};

int64_t size_of(const Tensor& t, int64_t axis) { return axis < 0 ? 1 : t.size[axis]; }
int64_t stride_of(const Tensor& t, int64_t axis) { return axis < 0 || t.size[axis] == 1 ? 0 : t.stride[axis]; }

ropewalk_rotation describe(const Tensor& x, const Tensor& y, const Tensor& cos, const Tensor& sin, const Turn& turn) {
    const Axes axes(x, turn.seq_dim);
    ropewalk_rotation r{};
    r.dtype = kernel_dtype(x.dtype);
    CHECK(r.dtype >= 0, "x is float32, float64, bfloat16 or float16");
    const int32_t table = r.dtype == ROPEWALK_F64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
    CHECK(cos.dtype == table && sin.dtype == table, r.dtype == ROPEWALK_F64 ? "cos and sin are float64 for float64 x"
                                                                             : "cos and sin are float32");
    CHECK(turn.layout == ROPEWALK_HALF || turn.layout == ROPEWALK_INTERLEAVED, "layout is 0 (half) or 1 (interleaved)");
    CHECK(cos.dim == sin.dim && cos.dim >= 2 && cos.dim <= 4, "cos and sin have 2 to 4 axes, got " + cos.shape() + " and " + sin.shape());
    for (int64_t i = 0; i < cos.dim; i++)
        CHECK(cos.size[i] == sin.size[i], "cos and sin have different shapes: " + cos.shape() + " and " + sin.shape());

    r.batch = size_of(x, axes.batch), r.heads = size_of(x, axes.heads), r.tokens = x.size[axes.tokens], r.channels = x.size[x.dim - 1];
    r.pairs = cos.size[cos.dim - 1], r.first = turn.first;
    CHECK(r.pairs >= 1 && r.pairs <= ROPEWALK_MAX_PAIRS, "1 to 1024 pairs turn, got " + std::to_string(r.pairs));
    CHECK(r.channels <= ROPEWALK_MAX_CHANNELS, "a head has at most 2048 channels, got " + std::to_string(r.channels));
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

    for (const Tensor* t : {&x, &y}) CHECK(r.channels == 1 || t->stride[t->dim - 1] == 1, "the last axis is contiguous");
    r.x = x.data, r.y = y.data, r.cos = cos.data, r.sin = sin.data;
    r.x_batch = stride_of(x, axes.batch), r.x_head = stride_of(x, axes.heads), r.x_token = stride_of(x, axes.tokens);
    r.y_batch = stride_of(y, axes.batch), r.y_head = stride_of(y, axes.heads), r.y_token = stride_of(y, axes.tokens);
    r.layout = int32_t(turn.layout), r.inverse = turn.inverse;

    // Large outputs that do not overwrite their input are written past the caches, in whole lines of 64 bytes.
    const int64_t bytes = ITEM_BYTES[r.dtype];
    const int64_t all = reinterpret_cast<intptr_t>(y.data) | (r.y_batch * bytes) | (r.y_head * bytes) | (r.y_token * bytes) | (r.channels * bytes);
    r.stream = x.data != y.data && x.elements() * bytes >= (8 << 20) && all % 64 == 0;
    return r;
}

struct Work {
    const ropewalk_rotation* rotations;
    int64_t count, items[2];
};
void run_range(int64_t begin, int64_t end, void* context) {
    const Work& w = *static_cast<Work*>(context);
    int64_t offset = 0;
    for (int64_t i = 0; i < w.count; i++) {
        const int64_t from = begin > offset ? begin - offset : 0, to = end - offset < w.items[i] ? end - offset : w.items[i];
        if (from < to) ropewalk_rotate(&w.rotations[i], from, to);
        offset += w.items[i];
    }
}
void run(std::initializer_list<ropewalk_rotation> rotations) {
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

// rotate(x, cos, sin, layout, seq_dim, first, inverse) -> y
Turn turn_from(const Value* v) { return {int64_t(v[0]), int64_t(v[1]), int64_t(v[2]), bool(v[3])}; }

void rotate(Value* stack, uint64_t, uint64_t) {
    Tensor x = tensor(stack[0]), cos = tensor(stack[1]), sin = tensor(stack[2]);
    const Turn turn = turn_from(stack + 3);
    CHECK(kernel_dtype(x.dtype) >= 0 && x.dim >= 2 && x.dim <= 4, "x is floating and has 2 to 4 axes");
    Tensor y = empty_like(x, ITEM_BYTES[kernel_dtype(x.dtype)]);
    run({describe(x, y, cos, sin, turn)});
    stack[0] = y.release();
}
// rotate_(x, …): in place
void rotate_in_place(Value* stack, uint64_t, uint64_t) {
    Tensor x = tensor(stack[0]), cos = tensor(stack[1]), sin = tensor(stack[2]);
    run({describe(x, x, cos, sin, turn_from(stack + 3))});
}
// rotate_out(x, …, out)
void rotate_out(Value* stack, uint64_t, uint64_t) {
    Tensor x = tensor(stack[0]), cos = tensor(stack[1]), sin = tensor(stack[2]), out = tensor(stack[7]);
    bool same = out.dim == x.dim && out.dtype == x.dtype;
    for (int64_t i = 0; same && i < x.dim; i++) same = out.size[i] == x.size[i];
    CHECK(same, "out has the shape and dtype of x: " + x.shape() + ", got " + out.shape());
    run({describe(x, out, cos, sin, turn_from(stack + 3))});
}
// rotate_pair(q, k, cos, sin, …) -> (q', k')
void rotate_pair(Value* stack, uint64_t, uint64_t) {
    Tensor q = tensor(stack[0]), k = tensor(stack[1]), cos = tensor(stack[2]), sin = tensor(stack[3]);
    const Turn turn = turn_from(stack + 4);
    for (const Tensor* t : {&q, &k}) CHECK(kernel_dtype(t->dtype) >= 0 && t->dim >= 2 && t->dim <= 4, "q and k are floating and have 2 to 4 axes");
    Tensor q_out = empty_like(q, ITEM_BYTES[kernel_dtype(q.dtype)]), k_out = empty_like(k, ITEM_BYTES[kernel_dtype(k.dtype)]);
    run({describe(q, q_out, cos, sin, turn), describe(k, k_out, cos, sin, turn)});
    stack[0] = q_out.release(), stack[1] = k_out.release();
}
// rotate_pair_(q, k, cos, sin, …): in place
void rotate_pair_in_place(Value* stack, uint64_t, uint64_t) {
    Tensor q = tensor(stack[0]), k = tensor(stack[1]), cos = tensor(stack[2]), sin = tensor(stack[3]);
    const Turn turn = turn_from(stack + 4);
    run({describe(q, q, cos, sin, turn), describe(k, k, cos, sin, turn)});
}

// ---------------------------------------------------------------------------------------------- tables

void table_range(int64_t begin, int64_t end, void* context) { ropewalk_cos_sin(static_cast<ropewalk_table*>(context), begin, end); }

// cos_sin(phases, factor, double) -> (cos, sin), of the shape of phases
void cos_sin(Value* stack, uint64_t, uint64_t) {
    Tensor phases = tensor(stack[0]);
    const bool is_double = bool(stack[2]);
    CHECK(phases.dtype == aoti_torch_dtype_int64() && phases.dim >= 1 && phases.dim <= 4, "phases are int64 and have 1 to 4 axes");
    int64_t stride[4], expected = 1;
    for (int64_t i = phases.dim - 1; i >= 0; i--) {
        CHECK(phases.size[i] <= 1 || phases.stride[i] == expected || !phases.elements(), "phases are contiguous");
        stride[i] = expected;
        expected *= phases.size[i] > 1 ? phases.size[i] : 1;
    }
    const int32_t dtype = is_double ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
    Tensor cos = empty(phases.dim, phases.size, stride, dtype, is_double ? 8 : 4);
    Tensor sin = empty(phases.dim, phases.size, stride, dtype, is_double ? 8 : 4);
    ropewalk_table t{static_cast<int64_t*>(phases.data), cos.data, sin.data, real(stack[1]), is_double};
    if (phases.elements() > 32768)
        torch_parallel_for(0, phases.elements(), 4096, table_range, &t);
    else
        table_range(0, phases.elements(), &t);
    stack[0] = cos.release(), stack[1] = sin.release();
}

// ---------------------------------------------------------------------------------------------- neighbours

// norm_rotate(x, cos, sin, …, weight, epsilon) -> y: RMSNorm over each head, then the rotation
void norm_rotate(Value* stack, uint64_t, uint64_t) {
    Tensor x = tensor(stack[0]), cos = tensor(stack[1]), sin = tensor(stack[2]), weight = tensor(stack[7]);
    CHECK(kernel_dtype(x.dtype) >= 0 && x.dim >= 2 && x.dim <= 4, "x is floating and has 2 to 4 axes");
    const bool fits = weight.dim == 1 && weight.size[0] == x.size[x.dim - 1] && weight.dtype == cos.dtype;
    CHECK(fits && (weight.size[0] <= 1 || weight.stride[0] == 1), "weight has one number a channel, contiguous, in the dtype of cos");
    Tensor y = empty_like(x, ITEM_BYTES[kernel_dtype(x.dtype)]);
    ropewalk_rotation r = describe(x, y, cos, sin, turn_from(stack + 3));
    r.weight = weight.data, r.epsilon = real(stack[8]), r.stream = 0;
    run({r});
    stack[0] = y.release();
}
}  // namespace

extern "C"
#if defined(_WIN32)
    __declspec(dllexport)
#else
    __attribute__((visibility("default")))
#endif
        const char* ropewalk_register(const char* libtorch) {
#if defined(_WIN32)
    HMODULE library = GetModuleHandleA(libtorch);
#define ROPEWALK_FIND(name) reinterpret_cast<void*>(GetProcAddress(library, name))
#else
    void* library = dlopen(libtorch, RTLD_NOW | RTLD_NOLOAD);
#define ROPEWALK_FIND(name) dlsym(library, name)
#endif
    if (!library) return "libtorch is not loaded";
#define ROPEWALK_LOOK_UP(type, name, arguments)                                    \
    name = reinterpret_cast<type(*) arguments>(ROPEWALK_FIND(#name));              \
    if (!name) return "this torch does not export " #name " (2.10 and later do)";
    ROPEWALK_TORCH_FUNCTIONS(ROPEWALK_LOOK_UP)

    const char* turn = "Tensor cos, Tensor sin, int layout, int seq_dim, int first, bool inverse";
    const struct {
        const char* name;
        std::string schema;
        void (*kernel)(Value*, uint64_t, uint64_t);
    } operators[] = {
        {"rotate", std::string("rotate(Tensor x, ") + turn + ") -> Tensor", rotate},
        {"rotate_", std::string("rotate_(Tensor(a!) x, ") + turn + ") -> ()", rotate_in_place},
        {"rotate_out", std::string("rotate_out(Tensor x, ") + turn + ", Tensor(a!) out) -> ()", rotate_out},
        {"rotate_pair", std::string("rotate_pair(Tensor q, Tensor k, ") + turn + ") -> (Tensor, Tensor)", rotate_pair},
        {"rotate_pair_", std::string("rotate_pair_(Tensor(a!) q, Tensor(b!) k, ") + turn + ") -> ()", rotate_pair_in_place},
        {"cos_sin", "cos_sin(Tensor phases, float factor, bool double) -> (Tensor, Tensor)", cos_sin},
        {"norm_rotate", std::string("norm_rotate(Tensor x, ") + turn + ", Tensor weight, float epsilon) -> Tensor", norm_rotate},
    };
    Handle definitions, implementations;
    if (aoti_torch_library_init_fragment("ropewalk", __FILE__, __LINE__, &definitions)) return "torch refused the library";
    if (aoti_torch_library_init_impl("ropewalk", "CPU", __FILE__, __LINE__, &implementations)) return "torch refused the library";
    for (const auto& op : operators) {
        if (aoti_torch_library_def(definitions, op.schema.c_str())) return "torch refused an operator";
        if (aoti_torch_library_impl(implementations, op.name, op.kernel)) return "torch refused an operator";
    }
    return nullptr;
}
