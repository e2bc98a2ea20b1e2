// The kernels as torch operators, without torch's headers and without linking to it.
#include "tensors.h"

using namespace ropewalk;

namespace {
Tensor tensor(Value v) { return Tensor(reinterpret_cast<Handle>(v)); }
double real(Value v) {
    double d;
    __builtin_memcpy(&d, &v, 8);
    return d;
}
Turn turn_from(const Value* v) { return {int64_t(v[0]), int64_t(v[1]), int64_t(v[2]), bool(v[3])}; }

// rotate(x, cos, sin, layout, seq_dim, first, inverse) -> y
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
    Tensor y = empty_like(x, ITEM_BYTES[kernel_dtype(x.dtype)]);
    double numbers[ROPEWALK_MAX_CHANNELS];
    run({describe_norm(x, y, cos, sin, turn_from(stack + 3), weight, real(stack[8]), numbers)});
    stack[0] = y.release();
}

// rotate_to_cache(k, v, cos, sin, …, k_cache, v_cache, slots): k turned, and v as it is, into rows of the caches
void rotate_to_cache(Value* stack, uint64_t, uint64_t) {
    Tensor k = tensor(stack[0]), v = tensor(stack[1]), cos = tensor(stack[2]), sin = tensor(stack[3]);
    Tensor k_cache = tensor(stack[8]), v_cache = tensor(stack[9]), slots = tensor(stack[10]);
    to_cache(k, v, cos, sin, turn_from(stack + 4), k_cache, v_cache, slots);
}
}  // namespace

extern "C" ROPEWALK_EXPORT const char* ropewalk_register(const char* libtorch) {
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
        {"rotate_to_cache", std::string("rotate_to_cache(Tensor k, Tensor v, ") + turn + ", Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()", rotate_to_cache},
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
