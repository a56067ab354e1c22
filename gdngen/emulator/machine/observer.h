// What the machine tells whoever watches the order of memory accesses. Two watchers implement this:
// shadow.cpp, exact for the path that ran, and tsan.cpp, which hands everything to ThreadSanitizer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu {

// How much somebody has seen of everyone: threads, and after them actors of asynchronous
// operations. `fenced` is the part of `seen` that a proxy fence stands behind, so that asynchronous
// operations may rely on it too.
struct Order {
  std::vector<uint32_t> seen, fenced;
  char* place = nullptr;  // tsan.cpp: what those who join it synchronise on
  void join(const Order& other);
};

// Where threads meet: whoever leaves has seen all that was done before anyone's arrival.
struct Fence {
  Order order;              // shadow.cpp: what arrivals have seen
  unsigned generation = 0;  // how often it has opened
  char addresses[2];        // tsan.cpp: what generations in turn synchronise on
};

namespace observer {

void begin_block(int threads);
void end_block();
void begin_thread(int thread);  // on its own fiber
void end_thread(int thread);
// The host thread turns to a thread's fiber, or with -1 to the scheduler.
void turn_to(int thread);

void arrive(Fence& fence, int thread);
// Everyone has arrived; `waiting` may leave.
void open(Fence& fence, const std::vector<int>& waiting);
// On the fiber of a thread that waited: it leaves the fence's generation.
void leave(Fence& fence, unsigned generation);

// When the thread did what it does now, and whether others have seen that.
uint32_t stamp(int thread);
bool has_seen(const Order& order, int thread, uint32_t stamp);
bool thread_has_seen(int thread, int other, uint32_t stamp);
bool has_seen_all(int thread, const Order& order);

// The same in halves, for barriers that some only arrive at and others only wait at.
void release(Order& order, int thread);
void acquire(const Order& order, int thread);

// The asynchronous copy's bytes may change from now until it lands for the thread that waits.
void copy_starts(int thread, void* to, size_t bytes, const void* caller);
void copy_lands(int thread, void* to, size_t bytes, const void* caller);
// It lands, and is as if the thread had written it at `stamp`.
void copy_arrives(int thread, uint32_t stamp, void* to, size_t bytes);
// What the thread does from now on comes after what has been stamped or issued.
void step(int thread);

// --- operations of the asynchronous proxy: tensor copies and warpgroup products ------------------

// Operations of one actor complete in turn: whoever has seen its n-th epoch has seen all before.
int new_actor();
constexpr uint32_t unknown_epoch = ~0u;  // not known before it lands

// Ordinary accesses of the thread before this may be seen by asynchronous operations after it.
void proxy_fence(int thread);
// What an operation that these threads issue together may rely on.
Order issued_by(int first, int count);
// An operation reads or writes from its issue on, until someone has seen `epoch` of its actor.
void async_access(int actor, uint32_t epoch, const Order& issuer, int thread, const void* at,
                  size_t bytes, bool writes, const void* caller);
// The epoch of writes that were issued without one.
void async_lands(int actor, uint32_t epoch, const void* at, size_t bytes);
// The thread, or whoever acquires the order, sees the actor's operations up to `epoch`.
void complete(int thread, int actor, uint32_t epoch);
void complete(Order& order, int actor, uint32_t epoch);

}  // namespace observer

// Registers that an operation still reads or writes: a thread's access to memory of its own.
void registers_touched(const void* at, size_t bytes, bool writes, const void* caller);

}  // namespace emu
