// What the machine tells whoever watches the order of memory accesses. Two watchers implement this:
// shadow.cpp, exact for the path that ran, and tsan.cpp, which hands everything to ThreadSanitizer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu {

// Where threads meet: whoever leaves has seen all that was done before anyone's arrival.
struct Fence {
  std::vector<uint32_t> clock;  // shadow.cpp: the latest that arrivals have seen of every thread
  unsigned generation = 0;      // how often it has opened
  char addresses[2];            // tsan.cpp: what generations in turn synchronise on
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

// The asynchronous copy's bytes may change from now until it lands for the thread that waits.
void copy_starts(int thread, void* to, size_t bytes, const void* caller);
void copy_lands(int thread, void* to, size_t bytes, const void* caller);

}  // namespace observer
}  // namespace emu
