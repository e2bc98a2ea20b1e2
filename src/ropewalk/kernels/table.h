// Cosine and sine of phases. Included like vectors.h, after it.

// A phase is a fraction of a turn in 64 bits. Its top two bits, rounded, are the quadrant; what is left lies within an eighth of a
// turn of zero, where two short polynomials give sine and cosine to 1e-11 (float) or to the last bits of a double.
template <class C>
INLINE void table_items(const ropewalk_table& t, int64_t begin, int64_t end) {
    constexpr double RADIANS = 6.283185307179586476925 / 18446744073709551616.0;
    C* cos = static_cast<C*>(t.cos);
    C* sin = static_cast<C*>(t.sin);
    for (int64_t i = begin; i < end; i++) {
        const uint64_t phase = uint64_t(t.phases[i]);
        const uint64_t quadrant = (phase + (uint64_t(1) << 61)) >> 62;
        const int64_t rest = int64_t(phase - (quadrant << 62));  // to double by halves, for which there are vector instructions
        const double x = (double(int32_t(rest >> 32)) * 4294967296.0 + double(uint32_t(rest))) * RADIANS, x2 = x * x;
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

TARGET void table(const ropewalk_table& t, int64_t begin, int64_t end) {
    return t.is_double ? table_items<double>(t, begin, end) : table_items<float>(t, begin, end);
}
