// Asynchronous copies from global to shared memory: cp.async with commit groups and waits.
#pragma once
#include "threads.h"

namespace tl {

template <int N> EMU_INLINE void cp_async_gs(const void* to, const void* from) {
  emu::copy_async(const_cast<void*>(to), from, N);
}
// Zeros where the condition does not hold.
template <int N>
EMU_INLINE void cp_async_gs_conditional(const void* to, const void* from, bool condition) {
  emu::copy_async(const_cast<void*>(to), condition ? from : nullptr, N);
}
EMU_INLINE void cp_async_commit() { emu::commit_copies(); }
template <int N> EMU_INLINE void cp_async_wait(int site = -1) { emu::wait_copies(N, site); }

}  // namespace tl
