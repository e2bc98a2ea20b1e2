// The kernels' plain C interface: no torch, no C++ types. Strides are counted in elements; the last axis is contiguous.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ropewalk_dtype { ROPEWALK_F32 = 0, ROPEWALK_F64 = 1, ROPEWALK_BF16 = 2, ROPEWALK_F16 = 3 };
enum ropewalk_layout { ROPEWALK_HALF = 0, ROPEWALK_INTERLEAVED = 1 };
enum { ROPEWALK_MAX_CHANNELS = 2048, ROPEWALK_MAX_PAIRS = 1024 };
enum ropewalk_isa { ROPEWALK_PORTABLE = 0, ROPEWALK_AVX2 = 1, ROPEWALK_AVX512 = 2 };

// Turn the pairs of x (batch, heads, tokens, channels) by the rows of cos and sin into y. y == x works in place. No pairs: a copy.
// Tables are float for F32, BF16 and F16, double for F64; a stride of 0 repeats a row.
struct ropewalk_rotation {
    const void* x;
    void* y;
    const void* cos;
    const void* sin;
    int64_t batch, heads, tokens, channels;
    int64_t x_batch, x_head, x_token;
    int64_t y_batch, y_head, y_token;
    int64_t table_batch, table_head, table_token;
    int64_t pairs;  // how many pairs turn
    int64_t first;  // the first channel that turns; the others are copied
    int32_t dtype, layout, inverse;
    int32_t stream;  // write past the caches: for outputs that they cannot hold
    const void* weight;  // if not null: RMSNorm over the channels first, times this, one number a channel (float; double for F64)
    double epsilon;      // of that norm
    const int64_t* slots;  // if not null: the row of y that each token goes to, in place of 0, 1, 2 …
    int64_t slot_batch, slot_token;
};

// The work in independent items, so that a caller may share them among threads: the result does not depend on how.
int64_t ropewalk_items(const struct ropewalk_rotation* r);
void ropewalk_rotate(const struct ropewalk_rotation* r, int64_t begin, int64_t end);

// Cosine and sine of the phases [begin, end), which are counted in 1/2^64 turns, times a factor, as float or double.
struct ropewalk_table {
    const int64_t* phases;
    void* cos;
    void* sin;
    double factor;
    int32_t is_double;
};
void ropewalk_cos_sin(const struct ropewalk_table* t, int64_t begin, int64_t end);

// One number of an array, as a double.
double ropewalk_read(const void* numbers, int64_t at, int32_t dtype);

// Which instructions are used: found at run time. Tests may ask for less than there is; it returns what is in force.
int32_t ropewalk_use_isa(int32_t wanted);
int32_t ropewalk_isa_found(void);
int32_t ropewalk_isa_in_use(void);

#ifdef __cplusplus
}
#endif
