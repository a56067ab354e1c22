// Scalar and vector types of CUDA and of TileLang's templates, with their conversions.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

namespace emu {

template <class To, class From> inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = (half >> 10) & 31;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;
  return bits_as<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

// Rounds to nearest, ties to even, like every narrowing conversion here.
inline uint16_t float_to_half(float value) {
  uint32_t bits = bits_as<uint32_t>(value);
  const uint16_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return 0x7fff;              // NaN
  if (bits >= 0x477ff000) return sign | 0x7c00;      // 65,520 and above round to infinity
  if (bits < 0x38800000) {                           // subnormal: let an addition do the rounding
    const float shifted = bits_as<float>(bits) + 0.5f;
    return sign | uint16_t(bits_as<uint32_t>(shifted) - 0x3f000000);
  }
  bits += 0xfff + ((bits >> 13) & 1);
  return sign | uint16_t((bits - 0x38000000) >> 13);
}

inline float bfloat16_to_float(uint16_t value) { return bits_as<float>(uint32_t(value) << 16); }

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// A 16-bit float. Arithmetic goes through float, which holds every exact intermediate result that
// rounding to 16 bits needs, so one operation is rounded once.
template <float (*Widen)(uint16_t), uint16_t (*Narrow)(float)> struct Float16 {
  uint16_t bits;
  Float16() = default;
  template <class Number> explicit Float16(Number value) : bits(Narrow(float(value))) {}
  operator float() const { return Widen(bits); }
  Float16 to_half() const { return *this; }
  Float16 to_nv_bfloat16() const { return *this; }

  friend Float16 operator+(Float16 a, Float16 b) { return Float16(float(a) + float(b)); }
  friend Float16 operator-(Float16 a, Float16 b) { return Float16(float(a) - float(b)); }
  friend Float16 operator*(Float16 a, Float16 b) { return Float16(float(a) * float(b)); }
  friend Float16 operator/(Float16 a, Float16 b) { return Float16(float(a) / float(b)); }
  friend Float16 operator-(Float16 a) { return Float16(-float(a)); }
  friend bool operator<(Float16 a, Float16 b) { return float(a) < float(b); }
  friend bool operator>(Float16 a, Float16 b) { return float(a) > float(b); }
  friend bool operator<=(Float16 a, Float16 b) { return float(a) <= float(b); }
  friend bool operator>=(Float16 a, Float16 b) { return float(a) >= float(b); }
  friend bool operator==(Float16 a, Float16 b) { return float(a) == float(b); }
  friend bool operator!=(Float16 a, Float16 b) { return float(a) != float(b); }
  Float16& operator+=(Float16 b) { return *this = *this + b; }
  Float16& operator-=(Float16 b) { return *this = *this - b; }
  Float16& operator*=(Float16 b) { return *this = *this * b; }
  Float16& operator/=(Float16 b) { return *this = *this / b; }
};

}  // namespace emu

using half_t = emu::Float16<emu::half_to_float, emu::float_to_half>;
using bfloat16_t = emu::Float16<emu::bfloat16_to_float, emu::float_to_bfloat16>;
using half = half_t;
using __half = half_t;
using nv_bfloat16 = bfloat16_t;
using __nv_bfloat16 = bfloat16_t;

namespace cutlass {
using ::bfloat16_t;
using ::half_t;
}  // namespace cutlass

template <float (*Widen)(uint16_t), uint16_t (*Narrow)(float)>
struct std::numeric_limits<emu::Float16<Widen, Narrow>> {
  using Number = emu::Float16<Widen, Narrow>;
  static constexpr bool has_infinity = true;
  static Number infinity() { return Number(std::numeric_limits<float>::infinity()); }
};

// --- vectors, aligned to their size as the hardware requires -------------------------------------

#define EMU_VECTORS(type, name)                                                                   \
  struct alignas(sizeof(type)) name##1 { type x; };                                               \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                        \
  struct name##3 { type x, y, z; };                                                               \
  struct alignas(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)) name##4 { type x, y, z, w; };     \
  inline name##1 make_##name##1(type x) { return {x}; }                                           \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                     \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned int, uint)
EMU_VECTORS(short, short)
EMU_VECTORS(unsigned short, ushort)
EMU_VECTORS(signed char, char)
EMU_VECTORS(unsigned char, uchar)
EMU_VECTORS(long long, longlong)
EMU_VECTORS(unsigned long long, ulonglong)
#undef EMU_VECTORS

struct alignas(4) half2 { half_t x, y; };
struct alignas(4) __nv_bfloat162 { bfloat16_t x, y; };
using __half2 = half2;
using nv_bfloat162 = __nv_bfloat162;

inline half2 make_half2(half_t x, half_t y) { return {x, y}; }
inline half2 __float22half2_rn(float2 v) { return {half_t(v.x), half_t(v.y)}; }
inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {bfloat16_t(v.x), bfloat16_t(v.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline half_t __float2half(float v) { return half_t(v); }
inline half_t __float2half_rn(float v) { return half_t(v); }
inline float __half2float(half_t v) { return float(v); }
inline bfloat16_t __float2bfloat16(float v) { return bfloat16_t(v); }
inline bfloat16_t __float2bfloat16_rn(float v) { return bfloat16_t(v); }
inline float __bfloat162float(bfloat16_t v) { return float(v); }

template <class T> inline unsigned __pack_half2(T low, T high) {
  static_assert(sizeof(T) == 2);
  return unsigned(low.bits) | unsigned(high.bits) << 16;
}
inline unsigned __pack_nv_bfloat162(bfloat16_t low, bfloat16_t high) {
  return __pack_half2(low, high);
}

inline int __float_as_int(float v) { return emu::bits_as<int>(v); }
inline unsigned __float_as_uint(float v) { return emu::bits_as<unsigned>(v); }
inline float __int_as_float(int v) { return emu::bits_as<float>(v); }
inline float __uint_as_float(unsigned v) { return emu::bits_as<float>(v); }

namespace tl {

template <class T> inline uint1 to_uint1(T v) { return emu::bits_as<uint1>(v); }
template <class T> inline T from_uint1(uint1 v) { return emu::bits_as<T>(v); }
inline uint1 pack_half2(half_t a, half_t b) { return {__pack_half2(a, b)}; }

// One small unit repeated over a wider vector.
template <class Vector, class Unit> inline Vector broadcast(Unit unit) {
  static_assert(sizeof(Vector) % sizeof(Unit) == 0);
  Vector vector;
  for (size_t i = 0; i < sizeof(Vector) / sizeof(Unit); ++i)
    memcpy(reinterpret_cast<char*>(&vector) + i * sizeof(Unit), &unit, sizeof(Unit));
  return vector;
}

template <class Vector, class Element, class... Rest>
inline Vector make_vec(Element first, Rest... rest) {
  const Element elements[] = {first, Element(rest)...};
  static_assert(sizeof(Vector) == sizeof(elements));
  Vector vector;
  memcpy(&vector, elements, sizeof(vector));
  return vector;
}

}  // namespace tl
