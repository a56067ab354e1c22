// cp.async: copies that land early, at their issue, or late, at the wait for them.
//
// Those that a barrier counts land late when no thread can go on. Hardware may do either, byte by
// byte. Both models see the same wrong programs through the observer; running both also shows whether the result depends on it.
#include <cstring>
#include <deque>
#include <vector>

#include "observer.h"
#include "state.h"

namespace emu {
namespace {

struct Copy {
  void* to;
  const void* from;  // null: zeros
  int bytes;
};
using Group = std::vector<Copy>;

struct Queue {
  Group open;                   // issued, not yet committed
  std::deque<Group> committed;  // oldest first
};
std::vector<Queue> queues;  // by thread

// Copies whose landing is an arrival at a barrier.
struct Arrival {
  Group copies;
  void* barrier;
  int thread;
  uint32_t stamp;
  Order order;  // of the thread, at the issue
};
std::deque<Arrival> arrivals;

Queue& my_queue() {
  if (queues.size() < size_t(launch.thread_count)) queues.resize(launch.thread_count);
  return queues[current_thread()];
}

void move_bytes(const Copy& copy) {
  if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
  else memset(copy.to, 0, copy.bytes);
}

void land(const Group& group, const void* caller) {
  for (const Copy& copy : group) {
    if (launch.late) move_bytes(copy);
    observer::copy_lands(current_thread(), copy.to, copy.bytes, caller);
  }
}

void land(const Arrival& arrival) {
  for (const Copy& copy : arrival.copies) {
    if (launch.late) move_bytes(copy);
    observer::copy_arrives(arrival.thread, arrival.stamp, copy.to, copy.bytes);
  }
  phase_arrives(arrival.barrier, arrival.order);
}

}  // namespace

void begin_copies() { arrivals.clear(); }

bool land_one_arrival() {
  if (arrivals.empty()) return false;
  const Arrival arrival = std::move(arrivals.front());
  arrivals.pop_front();
  land(arrival);
  return true;
}

void copy_async(void* to, const void* from, int bytes) {
  void* caller = __builtin_return_address(0);
  for (const void* end : {static_cast<const void*>(to), from})
    if (reinterpret_cast<uintptr_t>(end) % bytes) misaligned(end, bytes, caller);
  if (from) note_read(from, bytes, caller);
  observer::copy_starts(current_thread(), to, bytes, caller);
  const Copy copy{to, from, bytes};
  if (!launch.late) move_bytes(copy);
  my_queue().open.push_back(copy);
}

void commit_copies() {
  Queue& queue = my_queue();
  queue.committed.push_back(std::move(queue.open));
  queue.open.clear();
}

void arrive_with_copies(void* barrier) {
  Queue& queue = my_queue();
  const int thread = current_thread();
  Arrival arrival{{}, barrier, thread, observer::stamp(thread), observer::issued_by(thread, 1)};
  queue.committed.push_back(std::move(queue.open));
  for (Group& group : queue.committed)
    arrival.copies.insert(arrival.copies.end(), group.begin(), group.end());
  queue = {};
  observer::step(thread);
  if (launch.late) arrivals.push_back(std::move(arrival));
  else land(arrival);
}

void wait_copies(int pending, int site) {
  if (skipped(site)) return;
  const void* caller = __builtin_return_address(0);
  Queue& queue = my_queue();
  for (; queue.committed.size() > size_t(pending); queue.committed.pop_front())
    land(queue.committed.front(), caller);
  if (pending) return;
  land(queue.open, caller);
  queue.open.clear();
}

}  // namespace emu
