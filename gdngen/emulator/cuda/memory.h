// Shared and global memory beyond plain loads and stores, which the compiler's instrumentation
// reports by itself: alignment of vector accesses, static shared arrays, atomics.
#pragma once
#include "math.h"
#include "threads.h"

// Static shared arrays stand in a section of their own, so that the machine can tell them apart.
#define __shared__ static __attribute__((section("emu_shared")))

namespace emu {

// Every `*(float4*)(p)` of a kernel is built as `*emu::aligned<float4>(p)`: a vector access that is
// not aligned traps on the hardware.
template <class T, class Pointer> EMU_INLINE T* aligned(Pointer* pointer) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(T)) misaligned(pointer, sizeof(T));
  return (T*)pointer;
}

// Applies `change` to the value at `address` in one indivisible step and returns the old value.
template <class T, class Change> EMU_INLINE T atomically(T* address, Change change) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(T)) misaligned(address, sizeof(T));
  note_atomic(address, sizeof(T));
  T old;
  move_unseen(&old, address, sizeof(T));
  const T changed = change(old);
  move_unseen(address, &changed, sizeof(T));
  return old;
}

}  // namespace emu

template <class T> EMU_INLINE T __ldg(const T* address) { return *address; }

template <class T, class V> EMU_INLINE T AtomicAddRet(T* address, V value, int = 0) {
  return emu::atomically(address, [=](T old) { return T(old + T(value)); });
}
template <class T, class V> EMU_INLINE T AtomicMaxRet(T* address, V value, int = 0) {
  return emu::atomically(address, [=](T old) { return max(old, T(value)); });
}
template <class T, class V> EMU_INLINE T AtomicMinRet(T* address, V value, int = 0) {
  return emu::atomically(address, [=](T old) { return min(old, T(value)); });
}
template <class T, class V> EMU_INLINE void AtomicAdd(T* address, V value, int order = 0) {
  AtomicAddRet(address, value, order);
}
template <class T, class V> EMU_INLINE void AtomicMax(T* address, V value, int order = 0) {
  AtomicMaxRet(address, value, order);
}
template <class T, class V> EMU_INLINE void AtomicMin(T* address, V value, int order = 0) {
  AtomicMinRet(address, value, order);
}
template <class T> EMU_INLINE T atomicAdd(T* address, T value) {
  return AtomicAddRet(address, value);
}
template <class T> EMU_INLINE T atomicMax(T* address, T value) {
  return AtomicMaxRet(address, value);
}
template <class T> EMU_INLINE T atomicMin(T* address, T value) {
  return AtomicMinRet(address, value);
}
// The pair is two atomic additions, as the hardware promises no more.
template <class T> EMU_INLINE void AtomicAddx2(T* address, const T* values, int order = 0) {
  AtomicAdd(address, values[0], order);
  AtomicAdd(address + 1, values[1], order);
}
template <class T, class Pair> EMU_INLINE void AtomicAddx2(T* address, Pair values, int order = 0) {
  AtomicAdd(address, values.x, order);
  AtomicAdd(address + 1, values.y, order);
}
