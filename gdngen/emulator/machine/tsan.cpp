// The second opinion: tells ThreadSanitizer about fibers, barriers and copies, and leaves the rest
// to it. Linked with its runtime instead of shadow.cpp. It knows nothing of the asynchronous proxy,
// so of a kernel for sm_90 it watches what threads read and write themselves.
#include "observer.h"
#include "state.h"

extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read4_pc(const void* address, const void* caller);
void __tsan_write4_pc(void* address, const void* caller);
}

namespace emu {
namespace {

constexpr unsigned no_synchronisation = 1;  // a switch of fibers orders nothing
void* host = nullptr;
std::vector<void*> fibers;
char started, ended;

}  // namespace

// Accesses noted by hand are 4 bytes or a multiple of that.
void note_read(const void* from, size_t bytes, void* caller) {
  for (size_t i = 0; i < bytes; i += 4)
    __tsan_read4_pc(static_cast<const char*>(from) + i, caller);
}
void note_write(const void* to, size_t bytes, void* caller) {
  auto* begin = static_cast<char*>(const_cast<void*>(to));
  for (size_t i = 0; i < bytes; i += 4) __tsan_write4_pc(begin + i, caller);
}
// Atomic instructions order one another and are left out of the watch.
void note_atomic(void*, size_t) {}
const void* last_known_caller() { return nullptr; }
void Order::join(const Order&) {}

namespace observer {

void begin_block(int threads) {
  if (!host) host = __tsan_get_current_fiber();
  for (int i = 0; i < threads; ++i) fibers.push_back(__tsan_create_fiber(0));
  __tsan_release(&started);
}
void end_block() {
  __tsan_acquire(&ended);
  for (void* fiber : fibers) __tsan_destroy_fiber(fiber);
  fibers.clear();
}
void begin_thread(int) { __tsan_acquire(&started); }
void end_thread(int) { __tsan_release(&ended); }
void turn_to(int thread) {
  __tsan_switch_to_fiber(thread < 0 ? host : fibers[thread], no_synchronisation);
}

void arrive(Fence& fence, int) { __tsan_release(&fence.addresses[fence.generation % 2]); }
void open(Fence& fence, const std::vector<int>&) { ++fence.generation; }
void leave(Fence& fence, unsigned generation) { __tsan_acquire(&fence.addresses[generation % 2]); }

void release(Order& order, int) { __tsan_release(order.place); }
void acquire(const Order& order, int) { __tsan_acquire(order.place); }

uint32_t stamp(int) { return 0; }
bool has_seen(const Order&, int, uint32_t) { return true; }
bool thread_has_seen(int, int, uint32_t) { return true; }
bool has_seen_all(int, const Order&) { return true; }
int new_actor() { return 0; }
void proxy_fence(int) {}
Order issued_by(int, int) { return {}; }
void async_access(int, uint32_t, const Order&, int, const void*, size_t, bool, const void*) {}
void async_lands(int, uint32_t, const void*, size_t) {}
void complete(int, int, uint32_t) {}
void complete(Order&, int, uint32_t) {}

// ThreadSanitizer has no notion of a write under way: it sees it where the model lets it land.
void copy_starts(int, void* to, size_t bytes, const void* caller) {
  if (!launch.late) note_write(to, bytes, const_cast<void*>(caller));
}
void copy_lands(int, void* to, size_t bytes, const void* caller) {
  if (launch.late) note_write(to, bytes, const_cast<void*>(caller));
}

void copy_arrives(int, uint32_t, void*, size_t) {}
void step(int) {}

}  // namespace observer
}  // namespace emu
