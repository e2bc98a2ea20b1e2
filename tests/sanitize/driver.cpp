// Runs the kernels on heap buffers that end where the last number does, so that AddressSanitizer sees a step too far, and compares every
// number with a plain loop in double. Built and run by tests/test_sanitize.py. With an argument it asks for a token more than there are,
// which must not pass.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rotate.h"

namespace {
int64_t cases = 0, too_many = 0;
uint64_t state = 1;
uint32_t random_bits() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state >> 32);
}
int64_t below(int64_t n) { return random_bits() % n; }

const int64_t SIZE[] = {4, 8, 2, 2};
const char* const DTYPE[] = {"float32", "float64", "bfloat16", "float16"};
const double RELATIVE[] = {0, 0, 0x1p-8, 0x1p-11}, ABSOLUTE[] = {1e-6, 4e-15, 2e-6, 2e-6};
constexpr unsigned char UNTOUCHED = 0xa5;

// A heap buffer of exactly so many bytes, in lines of 64 where it is asked for.
struct Buffer {
    unsigned char* data;
    size_t bytes;
    Buffer(size_t n, bool aligned) : data(static_cast<unsigned char*>(aligned ? aligned_alloc(64, (n + 63) / 64 * 64) : malloc(n))), bytes(n) {
        if (!data) abort();
        memset(data, UNTOUCHED, n);
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { free(data); }
};

double number(const void* from, int64_t at, int dtype) {
    if (dtype == ROPEWALK_F64) return static_cast<const double*>(from)[at];
    if (dtype == ROPEWALK_F32) return static_cast<const float*>(from)[at];
    const uint16_t bits = static_cast<const uint16_t*>(from)[at];
    if (dtype == ROPEWALK_BF16) {
        const uint32_t word = uint32_t(bits) << 16;
        float f;
        memcpy(&f, &word, 4);
        return f;
    }
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    return (bits >> 15 ? -1 : 1) * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}
void put_random(void* to, int64_t at, int dtype) {  // of size 2 or less, some of them subnormal in half precision
    const double value = (int32_t(random_bits()) + 0.5) / 0x1p30;
    const uint32_t bits = random_bits();
    const float f = float(value);
    uint32_t word;
    memcpy(&word, &f, 4);
    switch (dtype) {
        case ROPEWALK_F64: static_cast<double*>(to)[at] = value; return;
        case ROPEWALK_F32: static_cast<float*>(to)[at] = f; return;
        case ROPEWALK_BF16: static_cast<uint16_t*>(to)[at] = uint16_t(word >> 16); return;
        case ROPEWALK_F16: static_cast<uint16_t*>(to)[at] = uint16_t((bits & 0x83ff) | (bits >> 16 & 15) << 10); return;
    }
}

struct Case {
    int isa, dtype, layout;
    int64_t batch = 1, heads = 2, tokens = 3, pairs = 1, first = 0, more = 0;  // channels beside those that turn: before and after
    bool inverse = false, in_place = false, norm = false, slots = false, stream = false, tokens_first = false;
    int64_t gap = 0;    // numbers between the rows of x; twice as many between those of y
    int per_table = 0;  // one table for all, one for each sample, one for each head
};

void fail(const Case& c, const char* what, int64_t at, double got, double wanted) {
    fprintf(stderr,
            "%s at %lld: %.17g, not %.17g (isa %d, %s, layout %d, %lld x %lld x %lld, %lld pairs from %lld, %lld more, inverse %d, in place %d, "
            "norm %d, slots %d, stream %d, tokens first %d, gap %lld, table %d)\n",
            what, (long long)at, got, wanted, c.isa, DTYPE[c.dtype], c.layout, (long long)c.batch, (long long)c.heads, (long long)c.tokens,
            (long long)c.pairs, (long long)c.first, (long long)c.more, c.inverse, c.in_place, c.norm, c.slots, c.stream, c.tokens_first,
            (long long)c.gap, c.per_table);
    exit(1);
}

// Strides of (batch, heads, tokens) for rows of that length; gives how many numbers there are from the first to the last.
int64_t lay_out(const Case& c, int64_t row, int64_t tokens, int64_t channels, int64_t& batch, int64_t& head, int64_t& token) {
    token = c.tokens_first ? row * c.heads : row;
    head = c.tokens_first ? row : row * tokens;
    batch = row * c.heads * tokens;
    return (c.batch - 1) * batch + (c.heads - 1) * head + (tokens - 1) * token + channels;
}

void run(const Case& c) {
    if (ropewalk_use_isa(c.isa) != c.isa) exit(2);
    const int table_dtype = c.dtype == ROPEWALK_F64 ? ROPEWALK_F64 : ROPEWALK_F32;
    const int64_t size = SIZE[c.dtype], channels = c.first + 2 * c.pairs + c.more, rows_of_y = c.slots ? c.tokens + 4 : c.tokens;
    ropewalk_rotation r{};
    const int64_t x_numbers = lay_out(c, channels + c.gap, c.tokens, channels, r.x_batch, r.x_head, r.x_token);
    const int64_t y_gap = c.in_place ? c.gap : 2 * c.gap;
    const int64_t y_numbers = lay_out(c, channels + y_gap, rows_of_y, channels, r.y_batch, r.y_head, r.y_token);
    const int64_t tables = (c.per_table ? c.batch : 1) * (c.per_table == 2 ? c.heads : 1), table_row = c.pairs + c.gap;
    const int64_t table_numbers = (tables * c.tokens - 1) * table_row + c.pairs;
    const int64_t table_size = SIZE[table_dtype];

    Buffer x(x_numbers * size, c.stream), y(y_numbers * size, c.stream), before(x_numbers * size, false), slots(c.batch * c.tokens * 8, false);
    Buffer cos(table_numbers * table_size, false), sin(table_numbers * table_size, false), weight(channels * table_size, false);
    for (int64_t i = 0; i < x_numbers; i++) put_random(x.data, i, c.dtype);
    for (int64_t i = 0; i < table_numbers; i++) put_random(cos.data, i, table_dtype), put_random(sin.data, i, table_dtype);
    for (int64_t i = 0; i < channels; i++) put_random(weight.data, i, table_dtype);
    memcpy(before.data, x.data, x.bytes);
    int64_t* const to_row = reinterpret_cast<int64_t*>(slots.data);
    for (int64_t b = 0; b < c.batch; b++)
        for (int64_t t = 0, shift = below(4); t < c.tokens; t++) to_row[b * c.tokens + t] = c.tokens - 1 - t + shift;

    r.x = x.data, r.y = c.in_place ? x.data : y.data, r.cos = cos.data, r.sin = sin.data;
    r.batch = c.batch, r.heads = c.heads, r.tokens = c.tokens, r.channels = channels, r.pairs = c.pairs, r.first = c.first;
    r.table_token = table_row, r.table_head = c.per_table == 2 ? c.tokens * table_row : 0;
    r.table_batch = c.per_table == 2 ? c.heads * r.table_head : c.per_table ? c.tokens * table_row : 0;
    r.dtype = c.dtype, r.layout = c.layout, r.inverse = c.inverse, r.stream = c.stream;
    r.weight = c.norm ? weight.data : nullptr, r.epsilon = 1e-3;
    if (c.slots) r.slots = to_row, r.slot_batch = c.tokens, r.slot_token = 1;
    r.tokens += too_many;
    const int64_t items = ropewalk_items(&r), part = below(items + 1);
    ropewalk_rotate(&r, part, items);  // in two parts, the second one first, as threads might
    ropewalk_rotate(&r, 0, part);

    const Buffer& out = c.in_place ? x : y;
    std::vector<bool> written(c.in_place ? x_numbers : y_numbers);
    std::vector<double> row(channels), exact(channels);
    for (int64_t b = 0; b < c.batch; b++)
        for (int64_t h = 0; h < c.heads; h++)
            for (int64_t t = 0; t < c.tokens; t++) {
                const int64_t from = b * r.x_batch + h * r.x_head + t * r.x_token;
                const int64_t to = b * r.y_batch + h * r.y_head + (c.slots ? to_row[b * c.tokens + t] : t) * r.y_token;
                const int64_t table = b * r.table_batch + h * r.table_head + t * r.table_token;
                double squares = 0, largest = 0;
                for (int64_t i = 0; i < channels; i++) row[i] = number(before.data, from + i, c.dtype), squares += row[i] * row[i];
                for (int64_t i = 0; c.norm && i < channels; i++)
                    row[i] *= number(weight.data, i, table_dtype) / std::sqrt(squares / double(channels) + r.epsilon);
                for (int64_t i = 0; i < channels; i++) exact[i] = row[i], largest = std::fmax(largest, std::fabs(row[i]));
                for (int64_t p = 0; p < c.pairs; p++) {
                    const bool half = c.layout == ROPEWALK_HALF;
                    const int64_t a = c.first + (half ? p : 2 * p), z = half ? a + c.pairs : a + 1;
                    const double cosine = number(cos.data, table + p, table_dtype), sine = number(sin.data, table + p, table_dtype) * (c.inverse ? -1 : 1);
                    exact[a] = row[a] * cosine - row[z] * sine, exact[z] = row[z] * cosine + row[a] * sine;
                }
                for (int64_t i = 0; i < channels; i++) {
                    const double got = number(out.data, to + i, c.dtype);
                    const double allowed = RELATIVE[c.dtype] * std::fabs(exact[i]) + ABSOLUTE[c.dtype] * std::fmax(1, largest) * (c.norm ? 4 : 1);
                    if (!(std::fabs(got - exact[i]) <= allowed)) fail(c, "wrong number", to + i, got, exact[i]);
                    written[to + i] = true;
                }
            }
    for (int64_t i = 0; i < int64_t(written.size()); i++) {
        const unsigned char* const now = out.data + i * size;
        for (int64_t byte = 0; !written[i] && byte < size; byte++)
            if (now[byte] != (c.in_place ? before.data[i * size + byte] : UNTOUCHED)) fail(c, "written between rows", i, now[byte], UNTOUCHED);
    }
}

void try_ways(Case c) {  // forward and back, in and out of place, with a norm and to slots
    for (int way = 0; way < 5; way++) {
        c.inverse = way % 2, c.in_place = way == 1, c.norm = way == 2, c.slots = way >= 3, c.tokens_first = (way + c.pairs) % 2;
        c.per_table = int((way + c.pairs) % 3), c.gap = c.pairs % 2 ? way : 0;
        run(c), cases++;
    }
}

void tables_of(int isa) {
    ropewalk_use_isa(isa);
    for (int64_t n = 1; n <= 70; n++)
        for (int is_double = 0; is_double < 2; is_double++) {
            Buffer phases(n * 8, false), cos(n * (is_double ? 8 : 4), false), sin(n * (is_double ? 8 : 4), false);
            int64_t* const phase = reinterpret_cast<int64_t*>(phases.data);
            for (int64_t i = 0; i < n; i++) phase[i] = int64_t(uint64_t(random_bits()) << 32 | random_bits());
            if (n > 3) phase[0] = 0, phase[1] = INT64_MIN, phase[2] = INT64_MAX, phase[3] = int64_t(1) << 61;
            const ropewalk_table t{phase, cos.data, sin.data, 0.5, is_double};
            ropewalk_cos_sin(&t, 0, n / 2), ropewalk_cos_sin(&t, n / 2, n), cases++;
            for (int64_t i = 0; i < n; i++) {
                const double angle = double(phase[i]) * (6.283185307179586476925 / 0x1p64), allowed = is_double ? 1e-15 : 3e-8;
                const int dtype = is_double ? ROPEWALK_F64 : ROPEWALK_F32;
                if (!(std::fabs(number(cos.data, i, dtype) - std::cos(angle) / 2) <= allowed && std::fabs(number(sin.data, i, dtype) - std::sin(angle) / 2) <= allowed))
                    fprintf(stderr, "wrong table at %lld of %lld\n", (long long)i, (long long)n), exit(1);
            }
        }
}
}  // namespace

int main(int arguments, char**) {
    too_many = arguments > 1;
    for (int isa = 0; isa <= ropewalk_isa_found(); isa++) {
        tables_of(isa);
        for (int dtype = 0; dtype < 4; dtype++)
            for (int layout = 0; layout < 2; layout++) {
                for (int64_t pairs = 1; pairs <= 70; pairs++) {  // every tail
                    Case c{isa, dtype, layout};
                    c.batch = 1 + pairs % 2, c.pairs = pairs, c.first = pairs % 3 ? 0 : pairs % 7, c.more = pairs % 5 ? 0 : pairs % 4;
                    try_ways(c);
                }
                for (int64_t tokens : {1, 31, 32, 33, 65, 2047, 2048, 2177}) {  // every end of a block
                    Case c{isa, dtype, layout};
                    c.tokens = tokens, c.pairs = tokens < 100 ? 6 : 3, c.more = 1;
                    try_ways(c);
                }
                for (int64_t pairs : {256, 1023, 1024}) {  // the most there may be: blocks of which only a part fits the prepared table
                    Case c{isa, dtype, layout};
                    c.tokens = 37, c.heads = 1, c.pairs = pairs;
                    try_ways(c);
                }
                for (int64_t lines = 1; lines <= 5; lines++)  // past the caches, in whole lines
                    for (int way = 0; way < 4; way++) {
                        Case c{isa, dtype, layout};
                        const int64_t channels = lines * 64 / SIZE[dtype];
                        c.stream = true, c.tokens = 35, c.slots = way % 2, c.tokens_first = way / 2, c.gap = way == 3 ? 64 / SIZE[dtype] : 0;
                        c.first = lines % 2 ? 0 : 2, c.pairs = (channels - c.first) / 2 - lines / 3, c.more = channels - c.first - 2 * c.pairs;
                        run(c), cases++;
                        if (layout == ROPEWALK_HALF) c.pairs = 0, c.first = channels, c.more = 0, run(c), cases++;  // values: copied alone
                        c.stream = false, run(c), cases++;
                    }
            }
    }
    printf("%lld cases on %d instruction sets\n", (long long)cases, ropewalk_isa_found() + 1);
}
