// mbarrier, fences between the generic and the asynchronous proxy, and what a warp elects.
#pragma once
#include "threads.h"

// As TileLang wraps an mbarrier; the machine keeps its state.
struct alignas(8) Barrier {
  uint64_t opaque;

  EMU_INLINE void init(unsigned arrivals) { emu::phase_init(this, arrivals); }
  EMU_INLINE void arrive(int site = -1) { emu::phase_arrive(this, site); }
  EMU_INLINE void expect_transaction(unsigned bytes) { emu::phase_expect(this, bytes); }
  EMU_INLINE void arrive_and_expect_tx(unsigned bytes) {
    emu::phase_expect(this, bytes);
    emu::phase_arrive(this, -1);
  }
  EMU_INLINE void wait(unsigned parity, int site = -1) { emu::phase_wait(this, parity, site); }
};

namespace emu {

inline char nothing;
inline void elect(void* const[warp_size]) {}

// Every `auto x = reinterpret_cast<Barrier*>(memory)` of a kernel is built with this around it.
inline Barrier* named(Barrier* barriers, const char* name) {
  name_phases(barriers, name);
  return barriers;
}

}  // namespace emu

namespace tl {

EMU_INLINE void fence_proxy_async(int site = -1) { emu::proxy_fence(site); }
// An arrival, as soon as the copies (cp.async) that this thread has started have landed.
EMU_INLINE void mbarrier_cp_async_arrive_noinc(Barrier& barrier) {
  emu::arrive_with_copies(&barrier);
}
// For other blocks of a cluster.
EMU_INLINE void fence_barrier_init() {}

// One thread of every `extent`, or with 0 one of the block: the first. Lanes meet to elect it.
template <int extent> EMU_INLINE bool tl_shuffle_elect() {
  emu::collective(emu::elect, emu::all_lanes, true, &emu::nothing);
  const int warp = threadIdx.x / emu::warp_size;
  const int every = (extent + emu::warp_size - 1) / emu::warp_size;
  return emu::lane() == 0 && (every ? warp % every == 0 : warp == 0);
}

template <unsigned count> EMU_INLINE void warpgroup_reg_alloc() { emu::set_registers(count); }
template <unsigned count> EMU_INLINE void warpgroup_reg_dealloc() { emu::set_registers(count); }

}  // namespace tl
