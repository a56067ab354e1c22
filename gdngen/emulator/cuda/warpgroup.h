// Products of a warpgroup (wgmma). See warpgroup.cpp for descriptors, layouts and when they run.
#pragma once
#include "matrix.h"

namespace tl {

// Bits 0 to 13 are where an operand starts, 16 to 29 and 32 to 45 its strides, all in units of 16
// bytes; 62 and 63 its swizzle.
struct GmmaDescriptor {
  uint64_t bits = 0;
  GmmaDescriptor operator+(unsigned units) const {
    return {(bits & ~uint64_t(0xffffffff)) | uint32_t(uint32_t(bits) + units)};
  }
  operator uint64_t() const { return bits; }
};

template <int layout = 0, int leading = 0, int stride = 0, class T>
EMU_INLINE void initialize_wgmma_descriptor(GmmaDescriptor& descriptor, const T* start) {
  descriptor.bits = uint64_t(layout) << 62 | uint64_t(stride & 0x3fff) << 32 |
                    uint64_t(leading & 0x3fff) << 16 | (emu::shared_address(start) >> 4 & 0x3fff);
}
template <class T> EMU_INLINE void increase_descriptor_offset(GmmaDescriptor& descriptor, T bytes) {
  descriptor = descriptor + unsigned(bytes >> 4);
}

template <DataType A, DataType B, DataType C, int M, int N, int K, bool a_across, bool b_across,
          int a_sign, int b_sign>
EMU_INLINE void wgmma(const uint32_t* a, uint64_t a_bits, uint64_t b_bits, void* c, bool adds) {
  constexpr bool wide = A == DataType::kTensorFloat32, to_half = C == DataType::kFloat16;
  static_assert(A == B && M == 64 && N % 8 == 0 && N <= 256 && K == (wide ? 8 : 16),
                "wgmma: shape not emulated");
  static_assert(to_half ? A == C : C == DataType::kFloat32, "wgmma: accumulator not emulated");
  static_assert(!wide || !(a_across || b_across), "wgmma: tfloat32 lies along k");
  constexpr auto element = wide                       ? emu::Element::tfloat32
                           : A == DataType::kBFloat16 ? emu::Element::bfloat16
                                                      : emu::Element::half;
  emu::multiply_warpgroup({element, N, a_across, b_across, a_sign, b_sign, to_half, a_bits, b_bits,
                           a, c, adds});
}

template <DataType A, DataType B, DataType C, int M, int N, int K, bool a_across, bool b_across,
          int a_sign = 1, int b_sign = 1>
EMU_INLINE void wgmma_ss(uint64_t a, uint64_t b, uint32_t* c, bool adds) {
  wgmma<A, B, C, M, N, K, a_across, b_across, a_sign, b_sign>(nullptr, a, b, c, adds);
}
template <DataType A, DataType B, DataType C, int M, int N, int K, bool a_across, bool b_across,
          int a_sign = 1, int b_sign = 1>
EMU_INLINE void wgmma_rs(const uint32_t* a, uint64_t b, uint32_t* c, bool adds) {
  static_assert(!a_across, "wgmma: an operand in registers lies along k");
  wgmma<A, B, C, M, N, K, a_across, b_across, a_sign, b_sign>(a, 0, b, c, adds);
}

EMU_INLINE void warpgroup_arrive(int site = -1) { emu::warpgroup_fence(site); }
EMU_INLINE void warpgroup_commit_batch() { emu::commit_products(); }
template <int pending> EMU_INLINE void wait_wgmma(int site = -1) {
  emu::wait_products(pending, site);
}
template <int pending> EMU_INLINE void warpgroup_wait(int site = -1) {
  emu::wait_products(pending, site);
}
// Keeps the compiler from moving registers' accesses past a product; here their address does.
template <class T> EMU_INLINE void warpgroup_fence_operand(T*, int) {}

}  // namespace tl
