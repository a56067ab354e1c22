// Reductions and running sums as TileLang's templates compose them: butterflies over shuffles, and
// over a shared workspace where the partner is in another warp.
#pragma once
#include <limits>
#include <type_traits>

#include "math.h"
#include "threads.h"

namespace tl {

struct SumOp { template <class T> T operator()(T a, T b) const { return a + b; } };
struct MaxOp { template <class T> T operator()(T a, T b) const { return fast_max(a, b); } };
struct MinOp { template <class T> T operator()(T a, T b) const { return fast_min(a, b); } };
struct BitAndOp { template <class T> T operator()(T a, T b) const { return a & b; } };
struct BitOrOp { template <class T> T operator()(T a, T b) const { return a | b; } };
struct BitXorOp { template <class T> T operator()(T a, T b) const { return a ^ b; } };

struct SyncThreadsBarrier {
  template <int phase = 0> EMU_INLINE static void sync() { __syncthreads(); }
};
template <int threads> struct NamedBarrier {
  template <int phase = 1> EMU_INLINE static void sync() { __sync_thread_partial(phase, threads); }
};

// Every thread ends with the reduction over its group: the threads that differ from it in the bits
// from `scale` up to `threads`.
template <class Reducer, int threads, int scale, int thread_offset = 0,
          class Barrier = SyncThreadsBarrier, int batch_size = 1, int workspace_stride = 0>
struct AllReduce {
  template <class T> EMU_INLINE static T run(T x, T* workspace = nullptr) {
    run_batch<T, 1>(&x, workspace);
    return x;
  }

  template <class T, int batch = batch_size>
  EMU_INLINE static void run_batch(T* x, T* workspace = nullptr) {
    const int me = threadIdx.x - thread_offset;
    for (int offset = threads / 2; offset >= scale; offset /= 2) {
      if (offset >= emu::warp_size) {
        Barrier::template sync<1>();
        for (int i = 0; i < batch; ++i) workspace[me + i * workspace_stride] = x[i];
        Barrier::template sync<2>();
        for (int i = 0; i < batch; ++i)
          x[i] = Reducer()(x[i], workspace[(me ^ offset) + i * workspace_stride]);
      } else {
        for (int i = 0; i < batch; ++i)
          x[i] = Reducer()(x[i], shfl_xor_sync(emu::all_lanes, x[i], offset));
      }
    }
  }
};

template <class T, class Reducer> EMU_INLINE T warp_reduce(T value, Reducer reducer) {
  for (int offset = 16; offset; offset /= 2)
    value = reducer(value, shfl_xor_sync(emu::all_lanes, value, offset));
  return value;
}
template <class T> EMU_INLINE T warp_reduce_sum(T value) { return warp_reduce(value, SumOp()); }
template <class T> EMU_INLINE T warp_reduce_max(T value) { return warp_reduce(value, MaxOp()); }
template <class T> EMU_INLINE T warp_reduce_min(T value) { return warp_reduce(value, MinOp()); }

// One warp scans one line in segments of 32, carrying the last value over.
template <class Reducer, bool reverse, class T>
EMU_INLINE void scan_line(const T* from, T* to, int extent, int from_stride, int to_stride) {
  const T zero = Reducer::template zero<T>();
  const int lane = emu::lane(), segments = (extent + 31) / 32;
  T carry = zero;
  for (int step = 0; step < segments; ++step) {
    const int segment = reverse ? segments - 1 - step : step, index = segment * 32 + lane;
    T value = index < extent ? from[index * from_stride] : zero;
    for (int offset = 1; offset < 32; offset *= 2) {
      const T other = reverse ? shfl_down_sync(emu::all_lanes, value, offset)
                              : shfl_up_sync(emu::all_lanes, value, offset);
      if (reverse ? lane < 32 - offset : lane >= offset) value = Reducer()(value, other);
    }
    value = Reducer()(value, carry);
    if (index < extent) to[index * to_stride] = value;
    carry = shfl_sync(emu::all_lanes, value, reverse ? 0 : 31);
  }
}

template <class Reducer, int threads, bool reverse> struct Scan1D {
  template <class T> EMU_INLINE static void run(const T* from, T* to, int extent) {
    if (threadIdx.x < 32) scan_line<Reducer, reverse>(from, to, extent, 1, 1);
  }
};
template <class Reducer, int threads, int axis, bool reverse> struct Scan2D {
  template <class T>
  EMU_INLINE static void run(const T* from, T* to, int rows, int columns, int from_stride,
                             int to_stride) {
    const int lines = axis == 1 ? rows : columns;
    for (int line = threadIdx.x / 32; line < lines; line += threads / 32) {
      if constexpr (axis == 1)
        scan_line<Reducer, reverse>(from + line * from_stride, to + line * to_stride, columns, 1,
                                    1);
      else
        scan_line<Reducer, reverse>(from + line, to + line, rows, from_stride, to_stride);
    }
  }
};

struct ScanSum : SumOp { template <class T> static T zero() { return T(0); } };
struct ScanMax : MaxOp {
  template <class T> static T zero() {
    if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::lowest();
    else return T(-CUDART_INF_F);
  }
};

template <int threads, bool reverse = false> struct CumSum1D : Scan1D<ScanSum, threads, reverse> {};
template <int threads, bool reverse = false> struct CumMax1D : Scan1D<ScanMax, threads, reverse> {};
template <int threads, int axis = 0, bool reverse = false>
struct CumSum2D : Scan2D<ScanSum, threads, axis, reverse> {};
template <int threads, int axis = 0, bool reverse = false>
struct CumMax2D : Scan2D<ScanMax, threads, axis, reverse> {};

}  // namespace tl
