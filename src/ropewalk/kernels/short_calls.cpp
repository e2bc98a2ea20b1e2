// Short calls, straight from Python: for a decoded token torch's dispatcher costs several times what the rotation does.
//
// A call is served here only where nothing could tell: plain tensors on the CPU, no gradient wanted, nothing traced, transformed or
// profiled, no mode of torch's at work, and little to do. Whatever else comes is left to the operators, and so is every error.
// Tensors are read through DLPack's C exchange functions, and Python is called through its stable functions, looked up like torch's: so
// this needs no headers of either.
#include <string.h>

#include "tensors.h"

using namespace ropewalk;

namespace {
struct PyObject;
using Object = PyObject*;

#define ROPEWALK_PYTHON_FUNCTIONS(F)                                       \
    F(void, Py_IncRef, (Object))                                           \
    F(void, Py_DecRef, (Object))                                           \
    F(Object, PyObject_Type, (Object))                                     \
    F(Object, PyObject_GetAttr, (Object, Object))                          \
    F(int, PyObject_IsTrue, (Object))                                      \
    F(Object, PyObject_CallFunctionObjArgs, (Object, ...))                 \
    F(Object, PyTuple_GetItem, (Object, intptr_t))                         \
    F(Object, PyTuple_Pack, (intptr_t, ...))                               \
    F(void*, PyCapsule_GetPointer, (Object, const char*))                  \
    F(double, PyFloat_AsDouble, (Object))                                  \
    F(long long, PyLong_AsLongLong, (Object))                              \
    F(const char*, PyUnicode_AsUTF8AndSize, (Object, intptr_t*))           \
    F(Object, PyErr_Occurred, ())                                          \
    F(void, PyErr_Clear, ())
ROPEWALK_PYTHON_FUNCTIONS(ROPEWALK_DECLARE)

struct Owned {  // a new reference
    Object object;
    explicit Owned(Object o) : object(o) {}
    Owned(const Owned&) = delete;
    ~Owned() {
        if (object) Py_DecRef(object);
    }
    explicit operator bool() const { return object; }
};

// DLPack 1.x, as torch's `Tensor.__dlpack_c_exchange_api__` gives it.
struct DLTensor {
    void* data;
    struct {
        int32_t type, id;
    } device;
    int32_t dim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *size, *stride;
    uint64_t offset;
};
struct DLExchange {
    struct {
        uint32_t major, minor;
        void* older;
    } header;
    void *allocate, *export_owned, *import_owned;
    int (*describe)(Object, DLTensor*);
};

// What Python hands over at the start, in this order.
struct Known {
    Object none, tensor, parameter, requires_grad, is_neg, increment_version, empty_like;
    Object forward_ad, current_level;  // a module and its attribute: 0 or more while something is differentiated forward
    Object watchers[5];  // functions that return something true while somebody may be watching or tracing
};
Known known;
const DLExchange* exchange;
constexpr int64_t LITTLE = 256 << 10;  // bytes, above which threads may help and the dispatcher's cost no longer matters

bool true_of(const Owned& o) {
    const int answer = o ? PyObject_IsTrue(o.object) : -1;
    if (answer < 0) PyErr_Clear();
    return answer != 0;  // an error counts as a yes
}

bool somebody_watches() {
    for (Object watcher : known.watchers)
        if (true_of(Owned(PyObject_CallFunctionObjArgs(watcher, nullptr)))) return true;
    const Owned level(PyObject_GetAttr(known.forward_ad, known.current_level));
    const bool forward = !level || PyLong_AsLongLong(level.object) >= 0;
    return PyErr_Occurred() ? PyErr_Clear(), true : forward;
}

int32_t torch_dtype(const DLTensor& t) {
    const int32_t kind = t.dtype.lanes == 1 ? t.dtype.code << 8 | t.dtype.bits : 0;
    switch (kind) {
        case 2 << 8 | 32: return aoti_torch_dtype_float32();
        case 2 << 8 | 64: return aoti_torch_dtype_float64();
        case 2 << 8 | 16: return aoti_torch_dtype_float16();
        case 4 << 8 | 16: return aoti_torch_dtype_bfloat16();
        case 0 << 8 | 64: return aoti_torch_dtype_int64();
    }
    return -1;
}

// A view of it, if it lies on the CPU.
bool read(Object object, View& t) {
    DLTensor found;
    if (exchange->describe(object, &found)) return PyErr_Clear(), false;
    t.dim = found.dim, t.size = found.size, t.stride = found.stride, t.dtype = torch_dtype(found);
    t.data = static_cast<char*>(found.data) + found.offset;
    return found.device.type == 1;
}

// The same, if it is plain: no subclass, nothing that learns, no view of negated numbers, of which DLPack does not tell.
bool read_plain(Object object, View& t) {
    const Owned type(PyObject_Type(object));
    if (type.object != known.tensor && type.object != known.parameter) return false;
    if (aoti_torch_grad_mode_is_enabled() && true_of(Owned(PyObject_GetAttr(object, known.requires_grad)))) return false;
    return !true_of(Owned(PyObject_CallFunctionObjArgs(known.is_neg, object, nullptr))) && read(object, t);
}

bool is(Object text, const char* expected) {
    intptr_t length;
    const char* found = PyUnicode_AsUTF8AndSize(text, &length);
    if (!found) return PyErr_Clear(), false;  // not a text
    return size_t(length) == strlen(expected) && !memcmp(found, expected, size_t(length));
}

// From layout, seq_dim, place, inverse, impl.
bool read_turn(Object const* a, int64_t channels, int64_t pairs, Turn& turn) {
    const bool half = is(a[0], "half"), leading = is(a[2], "leading"), served = is(a[4], "auto") || is(a[4], "native");
    turn = {half ? ROPEWALK_HALF : ROPEWALK_INTERLEAVED, PyLong_AsLongLong(a[1]), leading ? 0 : channels - 2 * pairs,
            PyObject_IsTrue(a[3]) == 1};
    if (PyErr_Occurred()) return PyErr_Clear(), false;
    return served && (half || is(a[0], "interleaved")) && (leading || is(a[2], "trailing"));
}

void changed(Object tensor) {  // torch must know, or a backward pass that needs the old values would not complain
    const Owned tensors(PyTuple_Pack(1, tensor));
    const Owned done(PyObject_CallFunctionObjArgs(known.increment_version, tensors.object, nullptr));
    if (!done) PyErr_Clear();  // an inference tensor, which has no version
}

Object result(Object o) {
    Py_IncRef(o);
    return o;
}

int64_t bytes_of(const View& t) { return kernel_dtype(t.dtype) < 0 ? LITTLE + 1 : t.elements() * ITEM_BYTES[kernel_dtype(t.dtype)]; }

// One or two inputs of as many channels, each no more than a little.
bool read_inputs(Object const* xs, View (&x)[2], int& count) {
    count = xs[1] == known.none ? 1 : 2;
    for (int i = 0; i < count; i++)
        if (!read_plain(xs[i], x[i]) || !x[i].dim || bytes_of(x[i]) > LITTLE) return false;
    return count == 1 || x[0].size[x[0].dim - 1] == x[1].size[x[1].dim - 1];
}

Object turn_inputs(Object const* xs, const View (&x)[2], int count, bool in_place, const View& cos, const View& sin, const Turn& how) {
    try {
        ropewalk_rotation turns[2];
        Owned to[2] = {Owned(nullptr), Owned(nullptr)};
        for (int i = 0; i < count; i++) {
            View y = x[i];
            to[i].object = in_place ? result(xs[i]) : PyObject_CallFunctionObjArgs(known.empty_like, xs[i], nullptr);
            if (!to[i]) return nullptr;  // Python has set an error
            if (!in_place && !read(to[i].object, y)) return result(known.none);
            turns[i] = describe(x[i], y, cos, sin, how);
        }
        for (int i = 0; i < count; i++) {
            if (bytes_of(x[i])) ropewalk_rotate(&turns[i], 0, ropewalk_items(&turns[i]));
            if (in_place) changed(xs[i]);
        }
        return count == 1 ? result(to[0].object) : PyTuple_Pack(2, to[0].object, to[1].object);
    } catch (const std::exception&) {
        return result(known.none);  // the long way says what is wrong
    }
}

// turn(in_place, q, k or None, cos, sin, layout, seq_dim, place, inverse, impl) -> q', or (q', k'), or None: not served
Object turn(Object, Object const* a, intptr_t given) {
    if (given != 10) return result(known.none);
    View x[2], cos, sin;
    int count;
    Turn how;
    if (somebody_watches() || !read_inputs(a + 1, x, count) || !read_plain(a[3], cos) || !read_plain(a[4], sin)) return result(known.none);
    if (!cos.dim || !read_turn(a + 5, x[0].size[x[0].dim - 1], cos.size[cos.dim - 1], how)) return result(known.none);
    return turn_inputs(a + 1, x, count, PyObject_IsTrue(a[0]) == 1, cos, sin, how);
}

// Positions and frequencies (1/2^64 turns a token), both of them dense; and how many numbers a table of them has.
bool read_angles(Object ids_object, Object turns_object, View& ids, View& turns, int64_t& numbers) {
    if (!read_plain(ids_object, ids) || !read_plain(turns_object, turns)) return false;
    bool dense = turns.dim == 1 && turns.stride[0] == 1;
    for (int64_t i = ids.dim - 1, expected = 1; i >= 0; expected *= ids.size[i--]) dense &= ids.size[i] == 1 || ids.stride[i] == expected;
    numbers = ids.elements() * turns.elements();
    const int64_t whole = aoti_torch_dtype_int64();
    const bool there = !numbers || (ids.data && turns.data);
    return there && dense && ids.dtype == whole && turns.dtype == whole && turns.size[0] <= ROPEWALK_MAX_PAIRS;
}

void fill_tables(const View& ids, const View& turns, double factor, bool is_double, void* cos, void* sin) {
    const int64_t pairs = turns.size[0];
    int64_t phases[ROPEWALK_MAX_PAIRS];
    for (int64_t i = 0, count = ids.elements(); i < count; i++) {
        const uint64_t id = uint64_t(static_cast<const int64_t*>(ids.data)[i]);
        for (int64_t p = 0; p < pairs; p++) phases[p] = int64_t(id * uint64_t(static_cast<const int64_t*>(turns.data)[p]));
        const int64_t at = i * pairs * (is_double ? 8 : 4);
        const ropewalk_table t{phases, static_cast<char*>(cos) + at, static_cast<char*>(sin) + at, factor, is_double};
        ropewalk_cos_sin(&t, 0, pairs);
    }
}

// turn_at(in_place, q, k or None, ids, turns, factor, channels, layout, seq_dim, place, inverse, impl) -> as turn, without tables to keep
Object turn_at(Object, Object const* a, intptr_t given) {
    constexpr int64_t FEW = 1024;  // numbers, which are as soon made as looked up
    if (given != 12) return result(known.none);
    const bool in_place = PyObject_IsTrue(*a++) == 1;
    View x[2], ids, turns, cos, sin;
    int count;
    int64_t numbers;
    Turn how;
    if (somebody_watches() || !read_inputs(a, x, count) || !read_angles(a[2], a[3], ids, turns, numbers)) return result(known.none);
    if (numbers > FEW || ids.dim > 2 || !read_turn(a + 6, x[0].size[x[0].dim - 1], turns.size[0], how)) return result(known.none);
    const double factor = PyFloat_AsDouble(a[4]);
    const int64_t channels = PyLong_AsLongLong(a[5]);
    if (PyErr_Occurred()) return PyErr_Clear(), result(known.none);
    for (int i = 0; i < count; i++)
        if (x[i].size[x[i].dim - 1] != channels || x[i].dtype != x[0].dtype) return result(known.none);
    const bool is_double = x[0].dtype == aoti_torch_dtype_float64();
    double tables[2][FEW];
    fill_tables(ids, turns, factor, is_double, tables[0], tables[1]);
    int64_t size[3], stride[3] = {1, 1, 1};
    size[ids.dim] = turns.size[0];
    for (int64_t i = ids.dim - 1; i >= 0; i--) size[i] = ids.size[i], stride[i] = stride[i + 1] * size[i + 1];
    cos.dim = ids.dim + 1, cos.size = size, cos.stride = stride;
    cos.dtype = is_double ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
    sin = cos, cos.data = tables[0], sin.data = tables[1];
    return turn_inputs(a, x, count, in_place, cos, sin, how);
}

// norm_turn(x, weight, cos, sin, layout, seq_dim, place, inverse, impl, epsilon) -> y; or None: not served
Object norm_turn(Object, Object const* a, intptr_t given) {
    if (given != 10) return result(known.none);
    View x, weight, cos, sin, y;
    Turn how;
    if (somebody_watches()) return result(known.none);
    if (!read_plain(a[0], x) || !read_plain(a[1], weight) || !read_plain(a[2], cos) || !read_plain(a[3], sin)) return result(known.none);
    if (!x.dim || !cos.dim || bytes_of(x) > LITTLE || !read_turn(a + 4, x.size[x.dim - 1], cos.size[cos.dim - 1], how)) return result(known.none);
    const double epsilon = PyFloat_AsDouble(a[9]);
    if (PyErr_Occurred()) return PyErr_Clear(), result(known.none);
    const Owned to(PyObject_CallFunctionObjArgs(known.empty_like, a[0], nullptr));
    if (!to) return nullptr;  // Python has set an error
    if (!read(to.object, y)) return result(known.none);
    try {
        double numbers[ROPEWALK_MAX_CHANNELS];
        run({describe_norm(x, y, cos, sin, how, weight, epsilon, numbers)});
    } catch (const std::exception&) {
        return result(known.none);
    }
    return result(to.object);
}

// to_cache(k, v, cos, sin, k_cache, v_cache, slots, layout, seq_dim, place, inverse, impl) -> (k_cache, v_cache); or None: not served
Object fill_cache(Object, Object const* a, intptr_t given) {
    if (given != 12) return result(known.none);
    View t[7];
    Turn how;
    if (somebody_watches()) return result(known.none);
    for (int i = 0; i < 7; i++)
        if (!read_plain(a[i], t[i]) || !t[i].dim) return result(known.none);
    if (bytes_of(t[0]) > LITTLE || bytes_of(t[1]) > LITTLE) return result(known.none);
    if (!read_turn(a + 7, t[0].size[t[0].dim - 1], t[2].size[t[2].dim - 1], how)) return result(known.none);
    try {
        to_cache(t[0], t[1], t[2], t[3], how, t[4], t[5], t[6]);
    } catch (const std::exception&) {
        return result(known.none);
    }
    changed(a[4]), changed(a[5]);
    return PyTuple_Pack(2, a[4], a[5]);
}

// tables(ids, turns, factor, like) -> (cos, sin) like that one, of the shape of ids and one column a pair; or None: not served
Object tables(Object, Object const* a, intptr_t given) {
    if (given != 4) return result(known.none);
    View ids, turns, cos, sin;
    int64_t numbers;
    if (somebody_watches() || !read_angles(a[0], a[1], ids, turns, numbers) || numbers > LITTLE / 8) return result(known.none);
    const double factor = PyFloat_AsDouble(a[2]);
    if (PyErr_Occurred()) return PyErr_Clear(), result(known.none);
    const Owned first(PyObject_CallFunctionObjArgs(known.empty_like, a[3], nullptr));
    const Owned second(PyObject_CallFunctionObjArgs(known.empty_like, a[3], nullptr));
    if (!first || !second) return nullptr;  // Python has set an error
    const bool made = read(first.object, cos) && read(second.object, sin) && cos.dim == ids.dim + 1 && cos.elements() == numbers;
    const bool is_double = made && cos.dtype == aoti_torch_dtype_float64();
    if (!made || (!is_double && cos.dtype != aoti_torch_dtype_float32())) return result(known.none);
    fill_tables(ids, turns, factor, is_double, cos.data, sin.data);
    return PyTuple_Pack(2, first.object, second.object);
}

struct Method {  // PyMethodDef
    const char* name;
    Object (*call)(Object, Object const*, intptr_t);
    int flags;  // 0x80: METH_FASTCALL
    const char* doc;
};
Method methods[] = {{"turn", turn, 0x80, "turn(in_place, q, k, cos, sin, layout, seq_dim, place, inverse, impl)"},
                    {"to_cache", fill_cache, 0x80, "to_cache(k, v, cos, sin, k_cache, v_cache, slots, layout, seq_dim, place, inverse, impl)"},
                    {"norm_turn", norm_turn, 0x80, "norm_turn(x, weight, cos, sin, layout, seq_dim, place, inverse, impl, epsilon)"},
                    {"turn_at", turn_at, 0x80, "turn_at(in_place, q, k, ids, turns, factor, channels, layout, seq_dim, place, inverse, impl)"},
                    {"tables", tables, 0x80, "tables(ids, turns, factor, like)"}};
}  // namespace

// Takes a tuple of what `Known` lists and the capsule of torch's exchange functions; gives one of the methods, or null where this cannot be.
extern "C" ROPEWALK_EXPORT void* ropewalk_short_calls(void* given, void* capsule, int32_t which) {
#define ROPEWALK_LOOK_UP_PYTHON(type, name, arguments)                              \
    name = reinterpret_cast<type(*) arguments>(dlsym(RTLD_DEFAULT, #name));         \
    if (!name) return nullptr;
#if defined(_WIN32)
    return nullptr;
#else
    if (which < 0 || which >= int32_t(sizeof methods / sizeof methods[0])) return nullptr;  // asked for by newer Python
    ROPEWALK_PYTHON_FUNCTIONS(ROPEWALK_LOOK_UP_PYTHON)
    exchange = static_cast<const DLExchange*>(PyCapsule_GetPointer(static_cast<Object>(capsule), "dlpack_exchange_api"));
    if (!exchange || exchange->header.major != 1 || !exchange->describe) return nullptr;
    Object* to = reinterpret_cast<Object*>(&known);
    for (size_t i = 0; i < sizeof known / sizeof(Object); i++) to[i] = result(PyTuple_GetItem(static_cast<Object>(given), intptr_t(i)));
    return &methods[which];
#endif
}
