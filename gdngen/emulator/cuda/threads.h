// Threads and what they wait for: indices, barriers, warp shuffles and votes.
#pragma once
#include "../machine/machine.h"
#include "types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// The optimiser must not move a load past a barrier on the strength of a promise about aliases.
#define __restrict__
#define EMU_INLINE [[gnu::always_inline]] inline

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_size())
#define gridDim (emu::grid_size())
constexpr int warpSize = emu::warp_size;

// --- barriers ------------------------------------------------------------------------------------

EMU_INLINE void __syncthreads(int site = -1) { emu::block_barrier(0, 0, false, site); }
EMU_INLINE int __syncthreads_count(int vote) { return emu::block_barrier(0, 0, vote, -1); }
EMU_INLINE int __syncthreads_or(int vote) { return emu::block_barrier(0, 0, vote, -1) != 0; }
EMU_INLINE int __syncthreads_and(int vote) { return emu::block_barrier(0, 0, !vote, -1) == 0; }
EMU_INLINE void __syncwarp(unsigned mask = emu::all_lanes, int site = -1) {
  emu::warp_barrier(mask, site);
}
// Fences order the memory of the thread that runs them with itself; barriers do the rest here.
EMU_INLINE void __threadfence_block() {}
EMU_INLINE void __threadfence() {}

namespace tl {

// `bar.sync` and `bar.arrive`: a barrier of a part of the block.
EMU_INLINE void __sync_thread_partial(int id, int count, int site = -1) {
  emu::block_barrier(id, count, false, site);
}
EMU_INLINE void __named_barrier_arrive(int id, int count) { emu::block_arrive(id, count); }

}  // namespace tl

// --- shuffles and votes --------------------------------------------------------------------------

namespace emu {

struct Shuffle { uint64_t value; int source; uint64_t result; };
void shuffle(void* const arguments[warp_size]);  // Operation on Shuffle

struct Vote { bool value; uint32_t result; };
void vote(void* const arguments[warp_size]);  // Operation on Vote

template <class T> EMU_INLINE T shuffle_from(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Shuffle argument{0, source, 0};
  memcpy(&argument.value, &value, sizeof(T));
  collective(shuffle, mask, false, &argument);
  memcpy(&value, &argument.result, sizeof(T));
  return value;
}

EMU_INLINE uint32_t ballot(unsigned mask, bool value) {
  Vote argument{value, 0};
  collective(vote, mask, false, &argument);
  return argument.result;
}

// The lane that `wanted` names if it is in the same `width` lanes, else the lane itself.
inline int within(int wanted, int width) {
  return wanted / width == lane() / width && wanted >= 0 ? wanted : lane();
}

}  // namespace emu

template <class T> EMU_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emu::shuffle_from(mask, value, emu::lane() / width * width + source % width);
}
template <class T> EMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return emu::shuffle_from(mask, value, emu::within(emu::lane() ^ bits, width));
}
template <class T> EMU_INLINE T __shfl_up_sync(unsigned mask, T value, int by, int width = 32) {
  return emu::shuffle_from(mask, value, emu::within(emu::lane() - by, width));
}
template <class T> EMU_INLINE T __shfl_down_sync(unsigned mask, T value, int by, int width = 32) {
  return emu::shuffle_from(mask, value, emu::within(emu::lane() + by, width));
}
EMU_INLINE unsigned __ballot_sync(unsigned mask, int value) { return emu::ballot(mask, value); }
EMU_INLINE int __any_sync(unsigned mask, int value) { return emu::ballot(mask, value) != 0; }
EMU_INLINE int __all_sync(unsigned mask, int value) { return emu::ballot(mask, !value) == 0; }
EMU_INLINE unsigned __activemask() { return emu::live_lanes(); }

namespace tl {

template <class T> EMU_INLINE T shfl_sync(unsigned mask, T value, int source) {
  return __shfl_sync(mask, value, source);
}
template <class T> EMU_INLINE T shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_xor_sync(mask, value, bits);
}
template <class T> EMU_INLINE T shfl_up_sync(unsigned mask, T value, int by) {
  return __shfl_up_sync(mask, value, by);
}
template <class T> EMU_INLINE T shfl_down_sync(unsigned mask, T value, int by) {
  return __shfl_down_sync(mask, value, by);
}

}  // namespace tl
