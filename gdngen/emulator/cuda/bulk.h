// Copies of tiles by the asynchronous proxy (TMA). See bulk.cpp for when they take place.
#pragma once
#include "phases.h"

using CUtensorMap = emu::TensorMap;

namespace tl {

EMU_INLINE void prefetch_tma_descriptor(const CUtensorMap&) {}

template <class... Coordinates>
EMU_INLINE void tma_load(const CUtensorMap& map, Barrier& barrier, const void* to,
                         Coordinates... at) {
  const int coordinates[] = {int(at)...};
  emu::load_box(map, &barrier, const_cast<void*>(to), coordinates);
}
EMU_INLINE void tma_load(void* to, const void* from, Barrier& barrier, unsigned bytes) {
  emu::load_bytes(to, from, &barrier, bytes);
}

template <class... Coordinates>
EMU_INLINE void tma_store(const CUtensorMap& map, const void* from, Coordinates... at) {
  const int coordinates[] = {int(at)...};
  emu::store_box(map, from, coordinates);
}
EMU_INLINE void tma_store(void* to, void* from, unsigned bytes) {
  emu::store_bytes(to, from, bytes);
}
EMU_INLINE void tma_store_arrive() { emu::commit_stores(); }
template <int pending, bool reads = true> EMU_INLINE void tma_store_wait(int site = -1) {
  emu::wait_stores(pending, reads, site);
}

}  // namespace tl
