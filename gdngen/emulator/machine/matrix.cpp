// ldmatrix, stmatrix and mma.sync: how a warp's registers hold matrices.
//
// With g = lane / 4 and t = lane % 4, 16-bit operands of m16n8k16 lie as follows (two a register):
//   a: row g, columns 2t and 2t+1; row g+8, the same; then both again, 8 columns further
//   b: rows 2t and 2t+1 of column g; then 8 rows further
//   c: row g, columns 2t and 2t+1; row g+8, the same (one float a register)
// tfloat32 operands of m16n8k8 are one a register: a is (g, t), (g+8, t), (g, t+4), (g+8, t+4), and
// b is (t, g), (t+4, g).
#include "../cuda/matrix.h"

#include <algorithm>
#include <cstring>

#include "state.h"

namespace emu {
namespace {

struct Row {
  uint16_t elements[8];
};

struct Load {
  Row row;  // as read from the lane's own address
  uint16_t (*registers)[2];
  int tiles;
  bool transposed;
};

void distribute(void* const arguments[warp_size]) {
  for (int lane = 0; lane < warp_size; ++lane) {
    auto* load = static_cast<Load*>(arguments[lane]);
    if (!load) continue;
    for (int tile = 0; tile < load->tiles; ++tile)
      for (int half = 0; half < 2; ++half) {
        int row = lane / 4, column = lane % 4 * 2 + half;
        if (load->transposed) std::swap(row, column);
        const auto* source = static_cast<const Load*>(arguments[tile * 8 + row]);
        if (source) load->registers[tile][half] = source->row.elements[column];
      }
  }
}

struct Store {
  void* row;
  const uint16_t (*registers)[2];
  int tiles;
  bool transposed;
};

void collect(void* const arguments[warp_size]) {
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto* store = static_cast<const Store*>(arguments[lane]);
    if (!store) continue;
    for (int tile = 0; tile < store->tiles; ++tile)
      for (int half = 0; half < 2; ++half) {
        int row = lane / 4, column = lane % 4 * 2 + half;
        if (store->transposed) std::swap(row, column);
        if (const auto* target = static_cast<const Store*>(arguments[tile * 8 + row]))
          static_cast<uint16_t*>(target->row)[column] = store->registers[tile][half];
      }
  }
}

struct Operands {
  Product product;
  void* c;
  const unsigned *a, *b;
};

float widen(Product product, unsigned packed, int half) {
  const uint16_t bits = packed >> 16 * half;
  return product == Product::bfloat16_to_float ? bfloat16_to_float(bits) : half_to_float(bits);
}

// The tensor cores ignore the low 13 bits of a float operand.
float tfloat32(unsigned bits) { return bits_as<float>(bits & ~0x1fffu); }

void multiply_warp(void* const arguments[warp_size]) {
  for (int lane = 0; lane < warp_size; ++lane)
    if (!arguments[lane]) return;  // reported by whoever called
  const Product product = static_cast<Operands*>(arguments[0])->product;
  const bool wide = product == Product::tfloat32_to_float;
  const int depth = wide ? 8 : 16;
  float a[16][16], b[16][8];
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto& mine = *static_cast<Operands*>(arguments[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8;
      if (wide) a[row][t + i / 2 * 4] = tfloat32(mine.a[i]);
      else
        for (int half = 0; half < 2; ++half)
          a[row][2 * t + half + i / 2 * 8] = widen(product, mine.a[i], half);
    }
    for (int i = 0; i < 2; ++i) {
      if (wide) b[t + i * 4][g] = tfloat32(mine.b[i]);
      else
        for (int half = 0; half < 2; ++half)
          b[2 * t + half + i * 8][g] = widen(product, mine.b[i], half);
    }
  }
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto& mine = *static_cast<Operands*>(arguments[lane]);
    for (int i = 0; i < 4; ++i) {
      const float sum = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
      if (product == Product::half_to_half) {
        uint16_t& c = static_cast<uint16_t*>(mine.c)[i];
        c = float_to_half(half_to_float(c) + sum);
      } else {
        static_cast<float*>(mine.c)[i] += sum;
      }
    }
  }
}

}  // namespace

void load_matrix(const void* row, void* registers, int tiles, bool transposed) {
  void* caller = __builtin_return_address(0);
  Load load{{}, static_cast<uint16_t(*)[2]>(registers), tiles, transposed};
  if (lane() < tiles * 8) {
    if (reinterpret_cast<uintptr_t>(row) % sizeof(Row)) misaligned(row, sizeof(Row), caller);
    note_read(row, sizeof(Row), caller);
    load.row = *static_cast<const Row*>(row);
  }
  collective(distribute, all_lanes, true, &load, caller);
}

void store_matrix(const void* row, const int* registers, int tiles, bool transposed) {
  void* caller = __builtin_return_address(0);
  Store store{const_cast<void*>(row), reinterpret_cast<const uint16_t(*)[2]>(registers), tiles,
              transposed};
  if (lane() < tiles * 8) {
    if (reinterpret_cast<uintptr_t>(row) % sizeof(Row)) misaligned(row, sizeof(Row), caller);
    note_write(row, sizeof(Row), caller);
  }
  collective(collect, all_lanes, true, &store, caller);
}

void multiply(Product product, void* c, const void* a, const void* b) {
  Operands operands{product, c, static_cast<const unsigned*>(a), static_cast<const unsigned*>(b)};
  collective(multiply_warp, all_lanes, true, &operands, __builtin_return_address(0));
}

}  // namespace emu
