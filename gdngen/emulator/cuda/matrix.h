// Matrix instructions of a warp: ldmatrix, stmatrix and mma.sync. See matrix.cpp for the layouts.
#pragma once
#include "threads.h"

namespace emu {

// Loads `tiles` 8x8 tiles of 16-bit elements from shared memory, one 32-bit register a lane and
// tile. Lane 8 t + r gives the address of row r of tile t.
void load_matrix(const void* row, void* registers, int tiles, bool transposed);

// The way back: tile t's register of every lane goes to the rows that lanes 8 t and on address.
void store_matrix(const void* row, const int* registers, int tiles, bool transposed);

enum class Product { half_to_float, bfloat16_to_float, tfloat32_to_float, half_to_half };

// c[16, 8] += a[16, k] @ b[k, 8], the operands spread over the warp's registers.
void multiply(Product product, void* c, const void* a, const void* b);

}  // namespace emu

namespace tl {

enum class DataType { kFloat16, kBFloat16, kFloat32, kTensorFloat32 };

template <DataType A, DataType B, DataType C, int M, int N, int K, bool TransA, bool TransB>
EMU_INLINE void mma_sync(void* c, const unsigned* a, const unsigned* b) {
  constexpr bool wide = A == DataType::kTensorFloat32, same = A == B && M == 16 && N == 8;
  static_assert(same && !TransA && TransB && K == (wide ? 8 : 16), "mma_sync: shape not emulated");
  constexpr bool to_half = C == DataType::kFloat16;
  static_assert(to_half ? A == C : C == DataType::kFloat32, "mma_sync: accumulator not emulated");
  emu::multiply(wide                       ? emu::Product::tfloat32_to_float
                : A == DataType::kBFloat16 ? emu::Product::bfloat16_to_float
                : to_half                  ? emu::Product::half_to_half
                                           : emu::Product::half_to_float,
                c, a, b);
}

#define EMU_LDMATRIX(tiles)                                                                       \
  EMU_INLINE void ptx_ldmatrix_x##tiles(const void* row, void* registers) {                       \
    emu::load_matrix(row, registers, tiles, false);                                               \
  }                                                                                               \
  EMU_INLINE void ptx_ldmatrix_x##tiles##_trans(const void* row, void* registers) {               \
    emu::load_matrix(row, registers, tiles, true);                                                \
  }
EMU_LDMATRIX(1)
EMU_LDMATRIX(2)
EMU_LDMATRIX(4)
#undef EMU_LDMATRIX

template <class... Registers> EMU_INLINE void ptx_stmatrix(const void* row, bool transposed,
                                                           Registers... registers) {
  const int values[] = {registers...};
  emu::store_matrix(row, values, sizeof...(registers), transposed);
}
#define EMU_STMATRIX(tiles)                                                                       \
  template <class... R> EMU_INLINE void ptx_stmatrix_m8n8_x##tiles(const void* row, R... values) { \
    static_assert(sizeof...(values) == tiles);                                                    \
    ptx_stmatrix(row, false, values...);                                                          \
  }                                                                                               \
  template <class... R>                                                                           \
  EMU_INLINE void ptx_stmatrix_m8n8_x##tiles##_trans(const void* row, R... values) {              \
    static_assert(sizeof...(values) == tiles);                                                    \
    ptx_stmatrix(row, true, values...);                                                           \
  }
EMU_STMATRIX(1)
EMU_STMATRIX(2)
EMU_STMATRIX(4)
#undef EMU_STMATRIX

}  // namespace tl
