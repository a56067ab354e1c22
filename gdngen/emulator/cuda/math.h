// Arithmetic: CUDA's functions by their names, approximate ones computed exactly.
#pragma once
#include <cmath>

#include "types.h"

using std::isfinite;
using std::isinf;
using std::isnan;

#ifndef CUDART_INF_F
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#endif

#define EMU_FLOAT(name, expression) inline float name(float x) { return expression; }
EMU_FLOAT(__expf, expf(x))
EMU_FLOAT(__exp2f, exp2f(x))
EMU_FLOAT(__exp10f, powf(10.0f, x))
EMU_FLOAT(__logf, logf(x))
EMU_FLOAT(__log2f, log2f(x))
EMU_FLOAT(__log10f, log10f(x))
EMU_FLOAT(__sinf, sinf(x))
EMU_FLOAT(__cosf, cosf(x))
EMU_FLOAT(__tanf, tanf(x))
EMU_FLOAT(rsqrtf, 1.0f / sqrtf(x))
EMU_FLOAT(__frsqrt_rn, 1.0f / sqrtf(x))
EMU_FLOAT(__fsqrt_rn, sqrtf(x))
EMU_FLOAT(__frcp_rn, 1.0f / x)
EMU_FLOAT(__saturatef, fminf(fmaxf(x, 0.0f), 1.0f))
#undef EMU_FLOAT
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }

// CUDA overloads these for every arithmetic type and mixes the 16-bit floats in.
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <> inline float max(float a, float b) { return fmaxf(a, b); }
template <> inline float min(float a, float b) { return fminf(a, b); }

#define EMU_HALVES(name, expression)                                                              \
  inline half_t name(half_t h) { const float x = h; return half_t(expression); }                  \
  inline bfloat16_t name(bfloat16_t h) { const float x = h; return bfloat16_t(expression); }
EMU_HALVES(__habs, fabsf(x))
EMU_HALVES(__hneg, -x)
EMU_HALVES(hexp, expf(x))
EMU_HALVES(hexp2, exp2f(x))
EMU_HALVES(hexp10, powf(10.0f, x))
EMU_HALVES(hlog, logf(x))
EMU_HALVES(hlog2, log2f(x))
EMU_HALVES(hlog10, log10f(x))
EMU_HALVES(hsin, sinf(x))
EMU_HALVES(hcos, cosf(x))
EMU_HALVES(htanh, tanhf(x))
EMU_HALVES(herf, erff(x))
EMU_HALVES(hsqrt, sqrtf(x))
EMU_HALVES(hrsqrt, 1.0f / sqrtf(x))
EMU_HALVES(hrcp, 1.0f / x)
EMU_HALVES(hfloor, floorf(x))
EMU_HALVES(hceil, ceilf(x))
EMU_HALVES(htrunc, truncf(x))
EMU_HALVES(hrint, rintf(x))
#undef EMU_HALVES

#define EMU_HALF_PAIRS(name, expression)                                                          \
  inline half_t name(half_t a, half_t b) { return half_t(expression); }                           \
  inline bfloat16_t name(bfloat16_t a, bfloat16_t b) { return bfloat16_t(expression); }
EMU_HALF_PAIRS(__hadd, float(a) + float(b))
EMU_HALF_PAIRS(__hsub, float(a) - float(b))
EMU_HALF_PAIRS(__hmul, float(a) * float(b))
EMU_HALF_PAIRS(__hdiv, float(a) / float(b))
EMU_HALF_PAIRS(__hmax, fmaxf(a, b))
EMU_HALF_PAIRS(__hmin, fminf(a, b))
EMU_HALF_PAIRS(hpow, powf(a, b))
#undef EMU_HALF_PAIRS
inline half_t __hfma(half_t a, half_t b, half_t c) { return half_t(fmaf(a, b, c)); }
inline bfloat16_t __hfma(bfloat16_t a, bfloat16_t b, bfloat16_t c) {
  return bfloat16_t(fmaf(a, b, c));
}

namespace tl {

inline float fast_rcp(float x) { return 1.0f / x; }
template <class T> inline T fast_max(T a, T b) { return ::max(a, b); }
template <class T> inline T fast_min(T a, T b) { return ::min(a, b); }

// Pairs: float2, half2, __nv_bfloat162.
#define EMU_PAIRS(name, expression)                                                               \
  template <class Pair> inline Pair name(Pair v, Pair w) {                                        \
    const auto apply = [](auto a, auto b) { return expression; };                                 \
    return {apply(v.x, w.x), apply(v.y, w.y)};                                                    \
  }
EMU_PAIRS(add2, a + b)
EMU_PAIRS(sub2, a - b)
EMU_PAIRS(mul2, a * b)
EMU_PAIRS(max2, ::max(a, b))
EMU_PAIRS(min2, ::min(a, b))
#undef EMU_PAIRS
inline float2 fma2(float2 a, float2 b, float2 c) {
  return {fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)};
}
template <class Pair> inline Pair fma2(Pair a, Pair b, Pair c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline float2 abs2(float2 v) { return {fabsf(v.x), fabsf(v.y)}; }
template <class Pair> inline Pair abs2(Pair v) { return {__habs(v.x), __habs(v.y)}; }

template <class T> inline T clamp(T x, T low, T high) { return ::min(::max(x, low), high); }
template <class Pair> inline Pair clamp2(Pair v, Pair low, Pair high) {
  return min2(max2(v, low), high);
}
template <int power = 1, class T> inline T pow_of_int(T x) {
  T result = x;
  for (int i = 1; i < power; ++i) result *= x;
  return result;
}

}  // namespace tl
