// mbarrier: barriers in shared memory whose phases complete by arrivals and by bytes that land.
//
// The machine keeps their state beside shared memory, by address. Waiting orders what came before
// the arrivals of the phase that is complete, and of those before it, with what comes after the wait.
//
// A wait names its phase by parity. If the next phase may end before a warp has come to wait for this
// one, the warp may wait for ever: only time keeps it from that. It is a finding whether or not it came
// to be so in this run. So is an arrival that might as well have come in the phase before, by someone
// who has not seen the end of that.
#include <map>
#include <string>

#include "observer.h"
#include "state.h"

namespace emu {
namespace {

struct Waited {
  int thread;
  uint32_t stamp;
  const void* caller;
};

struct PhaseBarrier {
  unsigned expected = 0;   // arrivals of a phase
  unsigned pending = 0;    // of them, still to come
  long bytes = 0;          // announced and not landed; less than none if they landed unannounced
  uint32_t phase = 0;      // how many are complete
  int actor = -1;          // of tensor copies that it counts
  Order arrived, complete; // what arrivals have seen; that, as of the last complete phase
  char place = 0;
  const void* caller = nullptr;  // who initialised it, and when
  int thread = 0;
  uint32_t stamp = 0;
  std::vector<int> waiting;
  std::vector<Waited> waited; // for the last complete phase
};

std::map<const void*, PhaseBarrier> barriers;
std::map<const void*, std::string> names;

std::string name_of(const void* barrier) {
  auto named = names.upper_bound(barrier);
  if (named == names.begin()) return "a barrier";
  --named;
  const long offset = static_cast<const char*>(barrier) - static_cast<const char*>(named->first);
  return named->second + "[" + std::to_string(offset / 8) + "]";
}

PhaseBarrier& find(void* at, const void* caller) {
  if (reinterpret_cast<uintptr_t>(at) % 8) misaligned(at, 8, const_cast<void*>(caller));
  const auto found = barriers.find(at);
  if (found == barriers.end()) {
    report_access("uninitialised shared read", at, 8, caller, "a barrier that was not initialised");
    finish(0);
  }
  const PhaseBarrier& barrier = found->second;
  if (!observer::thread_has_seen(current_thread(), barrier.thread, barrier.stamp))
    report({"race", nullptr, 0, 0, caller, barrier.caller, current_thread(), barrier.thread,
            keep("others may not have seen yet how " + name_of(at) + " was initialised")});
  return found->second;
}

// Lanes of a warp go together, so one that those who arrived had seen waiting is enough.
void check_overtaken(const PhaseBarrier& barrier) {
  std::map<int, const Waited*> missing;
  for (const Waited& one : barrier.waited) missing.emplace(one.thread / warp_size, &one);
  for (const Waited& one : barrier.waited)
    if (observer::has_seen(barrier.arrived, one.thread, one.stamp))
      missing.erase(one.thread / warp_size);
  for (const auto& [warp, one] : missing)
    report({"overtaken wait", nullptr, 0, 0, one->caller, nullptr, one->thread, -1,
            "the next phase may end before this warp has waited for this one"});
}

void advance(PhaseBarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  check_overtaken(barrier);
  barrier.waited.clear();
  ++barrier.phase;
  barrier.pending = barrier.expected;
  if (barrier.actor >= 0) observer::complete(barrier.arrived, barrier.actor, barrier.phase);
  barrier.complete = barrier.arrived;
  for (int thread : barrier.waiting) wake(thread);
  barrier.waiting.clear();
}

void count_arrival(PhaseBarrier& barrier, const void* at, const void* caller) {
  if (!barrier.pending) {  // all have arrived, and bytes are awaited
    report({"barrier divergence", nullptr, 0, 0, caller, nullptr, current_thread(), -1,
            keep("an arrival too many at " + name_of(at))});
    return;
  }
  --barrier.pending;
  advance(barrier);
}

std::string state_of(const void* at, unsigned parity) {
  const PhaseBarrier& barrier = barriers[at];
  return name_of(at) + " at parity " + std::to_string(parity) + ", in phase " +
         std::to_string(barrier.phase) + " with " + std::to_string(barrier.pending) + " of " +
         std::to_string(barrier.expected) + " arrivals and " + std::to_string(barrier.bytes) +
         " bytes to come";
}

}  // namespace

void begin_phases() { barriers.clear(); }

void name_phases(const void* at, const char* name) { names[at] = name; }

void phase_init(void* at, unsigned arrivals) {
  void* caller = __builtin_return_address(0);
  if (reinterpret_cast<uintptr_t>(at) % 8) misaligned(at, 8, caller);
  note_write(at, 8, caller);
  PhaseBarrier& barrier = barriers[at] = {arrivals, arrivals};
  barrier.arrived.place = &barrier.place;
  barrier.caller = caller;
  barrier.thread = current_thread();
  barrier.stamp = observer::stamp(barrier.thread);
}

void phase_arrive(void* at, int site) {
  if (skipped(site)) return;
  PhaseBarrier& barrier = find(at, __builtin_return_address(0));
  if (!observer::has_seen_all(current_thread(), barrier.complete))
    report({"early arrival", nullptr, 0, 0, __builtin_return_address(0), nullptr, current_thread(),
            -1, keep("nothing keeps it from coming a phase of " + name_of(at) + " too early")});
  observer::release(barrier.arrived, current_thread());
  count_arrival(barrier, at, __builtin_return_address(0));
}

void phase_arrives(void* at, const Order& order) {
  PhaseBarrier& barrier = find(at, nullptr);
  barrier.arrived.join(order);
  count_arrival(barrier, at, nullptr);
}

void phase_expect(void* at, unsigned bytes) {
  PhaseBarrier& barrier = find(at, __builtin_return_address(0));
  barrier.bytes += bytes;
}

void phase_wait(void* at, unsigned parity, int site) {
  if (skipped(site)) return;
  const void* caller = __builtin_return_address(0);
  PhaseBarrier& barrier = find(at, caller);
  const auto complete = [&] {
    if ((barrier.phase & 1) != (parity & 1)) return true;
    barrier.waiting.push_back(current_thread());
    return false;
  };
  sleep_until(complete, [&] { return state_of(at, parity); }, caller);
  observer::acquire(barrier.complete, current_thread());
  barrier.waited.push_back({current_thread(), observer::stamp(current_thread()), caller});
}

int phase_actor(void* at, const void* caller) {
  PhaseBarrier& barrier = find(at, caller);
  if (barrier.actor < 0) barrier.actor = observer::new_actor();
  return barrier.actor;
}

uint32_t phase_epoch(void* at) { return barriers[at].phase + 1; }

void phase_lands(void* at, unsigned bytes) {
  PhaseBarrier& barrier = barriers[at];
  barrier.bytes -= bytes;
  advance(barrier);
}

void proxy_fence(int site) {
  if (!skipped(site)) observer::proxy_fence(current_thread());
}

}  // namespace emu
