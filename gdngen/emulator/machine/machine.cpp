// Fibers, the scheduler, barriers and warp collectives.
#include "machine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "../cuda/threads.h"
#include "observer.h"
#include "state.h"

extern "C" void emu_kernel();  // calls the kernel with the launch's arguments

namespace emu {

Launch launch;
long skipped_waits = 0;

namespace {

constexpr size_t stack_bytes = 256 << 10;

struct Thread {
  enum { ready, waiting, done } state = ready;
  ucontext_t context;
  void* stack = nullptr;
  const void* caller = nullptr;  // where it waits
  const std::function<std::string()>* why = nullptr;  // what for, if not for threads
};

// A collective that some lanes of a warp have reached.
struct Meeting {
  Operation operation;
  uint32_t mask, arrived;
  bool converged;
  void* arguments[warp_size];
};

struct Warp {
  std::vector<Meeting> meetings;
  std::map<uint32_t, Fence> fences;  // of __syncwarp, by mask
  uint32_t exited = 0;
};

struct Barrier {
  Fence fence;
  std::vector<int> waiting;
  int arrived = 0, votes = 0, result = 0;
};

std::vector<Thread> threads;
std::vector<Warp> warps;
Barrier barriers[16];
ucontext_t scheduler;
int running = -1;  // thread
bool turn_ends = false;  // the warp that runs has opened a barrier, and others have a turn first
Index running_block;
int exited_threads, completed_barriers;
std::mt19937 shuffler;

int warp_of(int thread) { return thread / warp_size; }
uint32_t bit_of(int thread) { return 1u << thread % warp_size; }
// A block that is no multiple of 32 leaves the last warp without some lanes.
uint32_t missing_lanes(int warp) {
  const int lanes = launch.thread_count - warp * warp_size;
  return lanes >= warp_size ? 0 : all_lanes << lanes;
}

void diverged(const void* caller, const void* other_caller, int thread, int other,
              const char* note) {
  report({"barrier divergence", nullptr, 0, 0, caller, other_caller, thread, other, note});
}

// Back to the scheduler, until it finds the thread ready.
void yield() {
  ucontext_t& context = threads[running].context;
  observer::turn_to(-1);
  swapcontext(&context, &scheduler);
}

void wait_at(const void* caller) {
  threads[running].state = Thread::waiting;
  threads[running].caller = caller;
}

// Applies every collective of the warp that nobody is missing from any more.
void hold_meetings(int warp_number) {
  Warp& warp = warps[warp_number];
  for (size_t i = 0; i < warp.meetings.size();) {
    Meeting& meeting = warp.meetings[i];
    if ((meeting.mask & ~warp.exited) & ~meeting.arrived) {
      ++i;
      continue;
    }
    const int base = warp_number * warp_size, first = base + __builtin_ctz(meeting.arrived);
    if (meeting.converged && meeting.arrived != all_lanes)
      diverged(threads[first].caller, nullptr, first, -1,
               "matrix instruction without the whole warp");
    meeting.operation(meeting.arguments);
    for (int lane = 0; lane < warp_size; ++lane)
      if (meeting.arrived >> lane & 1) threads[base + lane].state = Thread::ready;
    warp.meetings.erase(warp.meetings.begin() + i);
  }
}

void open_barrier(int id) {
  Barrier& barrier = barriers[id];
  observer::open(barrier.fence, barrier.waiting);
  barrier.result = barrier.votes;
  barrier.arrived = barrier.votes = 0;
  for (int thread : barrier.waiting) threads[thread].state = Thread::ready;
  if (id == 0) {
    ++completed_barriers;
    const int first = barrier.waiting.front();
    if (exited_threads)
      diverged(threads[first].caller, nullptr, first, -1, "other threads have exited");
    for (int thread : barrier.waiting)
      if (threads[thread].caller != threads[first].caller) {
        diverged(threads[first].caller, threads[thread].caller, first, thread,
                 "threads of one block wait at different barriers");
        break;
      }
  }
  barrier.waiting.clear();
  turn_ends = true;
}

// Hardware counts threads that have exited as present at the block's barrier.
void open_if_complete(int id, int count) {
  Barrier& barrier = barriers[id];
  const int needed = count ? count : launch.thread_count - exited_threads;
  if (barrier.arrived && barrier.arrived >= needed) open_barrier(id);
}

void fiber_main() {
  observer::begin_thread(running);
  emu_kernel();
  wait_copies(0, -1);
  end_stores();
  observer::end_thread(running);
  threads[running].state = Thread::done;
  ++exited_threads;
  warps[warp_of(running)].exited |= bit_of(running);
  hold_meetings(warp_of(running));
  if (!barriers[0].waiting.empty()) open_if_complete(0, 0);
  observer::turn_to(-1);
  setcontext(&scheduler);
}

void start_thread(int number) {
  Thread& thread = threads[number];
  if (!thread.stack)
    thread.stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  thread.state = Thread::ready;
  getcontext(&thread.context);
  thread.context.uc_stack = {thread.stack, 0, stack_bytes};
  thread.context.uc_link = &scheduler;
  makecontext(&thread.context, fiber_main, 0);
}

// Runs the warp until each of its lanes waits for another warp or has exited.
bool run_warp(int warp) {
  bool ran = false;
  turn_ends = false;
  for (bool progress = true; progress && !turn_ends;) {
    progress = false;
    const int first = warp * warp_size, last = std::min(first + warp_size, launch.thread_count);
    for (int i = first; i < last; ++i) {
      const int thread = launch.order == 1 ? first + last - 1 - i : i;
      if (threads[thread].state != Thread::ready) continue;
      running = thread;
      observer::turn_to(thread);
      swapcontext(&scheduler, &threads[thread].context);
      ran = progress = true;
    }
  }
  return ran;
}

std::vector<int> warp_order() {
  std::vector<int> order(warps.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (launch.order == 1) std::reverse(order.begin(), order.end());
  if (launch.order > 1) std::shuffle(order.begin(), order.end(), shuffler);
  return order;
}

// Everyone who waits for ever at one place for one reason is one finding.
void report_deadlock() {
  std::map<std::pair<const void*, std::string>, std::vector<int>> reasons;
  int waiting = -1, other = -1;
  for (int i = 0; i < launch.thread_count; ++i) {
    const Thread& thread = threads[i];
    if (thread.state != Thread::waiting) continue;
    if (thread.why) reasons[{thread.caller, (*thread.why)()}].push_back(i);
    if (waiting < 0) waiting = i;
    else if (other < 0 && thread.caller != threads[waiting].caller) other = i;
  }
  if (reasons.empty())
    diverged(threads[waiting].caller, other < 0 ? nullptr : threads[other].caller, waiting, other,
             "threads wait for one another for ever");
  for (const auto& [reason, stuck] : reasons) {
    const std::string count = std::to_string(stuck.size());
    report({"deadlock", nullptr, 0, 0, reason.first, nullptr, stuck.front(), -1,
            keep(count + " threads wait for ever: " + reason.second)});
  }
}

}  // namespace

int run_block(Index block) {
  running_block = block;
  exited_threads = completed_barriers = 0;
  shuffler.seed(launch.order);
  threads.resize(launch.thread_count);
  warps.assign((launch.thread_count + warp_size - 1) / warp_size, {});
  for (size_t i = 0; i < warps.size(); ++i) warps[i].exited = missing_lanes(i);
  for (Barrier& barrier : barriers) barrier = {};
  observer::begin_block(launch.thread_count);
  begin_copies();
  begin_phases();
  begin_bulk();
  begin_warpgroups();
  for (int i = 0; i < launch.thread_count; ++i) start_thread(i);
  for (bool progress = true; progress;) {
    progress = false;
    for (int warp : warp_order()) progress |= run_warp(warp);
    // As late as can be.
    if (!progress)
      progress = land_one_arrival() || land_one_copy(exited_threads == launch.thread_count);
  }
  if (exited_threads < launch.thread_count) {
    report_deadlock();
    finish(0);
  }
  end_warpgroups();
  observer::end_block();
  return completed_barriers;
}

void sleep_until(const std::function<bool()>& done, const std::function<std::string()>& why,
                 const void* caller) {
  while (!done()) {
    threads[running].why = &why;
    wait_at(caller);
    yield();
  }
  threads[running].why = nullptr;
}

void wake(int thread) { threads[thread].state = Thread::ready; }

bool skipped(int site) {
  if (site < 0 || site != launch.skipped_site) return false;
  ++skipped_waits;
  return true;
}

// --- what kernels call ---------------------------------------------------------------------------

int current_thread() { return running; }
int lane() { return running % warp_size; }
Index thread_index() {
  const Index size = launch.threads;
  return {running % size.x, running / size.x % size.y, running / size.x / size.y};
}
Index block_index() { return running_block; }
Index block_size() { return launch.threads; }
Index grid_size() { return launch.grid; }
unsigned char* dynamic_shared() { return regions[0].begin; }
uint32_t live_lanes() { return ~warps[warp_of(running)].exited; }

void collective(Operation operation, uint32_t mask, bool converged, void* argument,
                const void* caller) {
  std::vector<Meeting>& meetings = warps[warp_of(running)].meetings;
  auto meeting = std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& m) {
    return m.operation == operation && m.mask == mask && !(m.arrived & bit_of(running));
  });
  if (meeting == meetings.end())
    meeting = meetings.insert(meetings.end(), {operation, mask, 0, converged, {}});
  meeting->arrived |= bit_of(running);
  meeting->arguments[lane()] = argument;
  wait_at(caller ? caller : __builtin_return_address(0));
  hold_meetings(warp_of(running));
  if (threads[running].state == Thread::waiting) yield();
}

void warp_barrier(uint32_t mask, int site) {
  if (skipped(site)) return;
  Fence& fence = warps[warp_of(running)].fences[mask];
  const unsigned generation = fence.generation;
  struct Argument { Fence* fence; int thread; } argument{&fence, running};
  observer::arrive(fence, running);
  const Operation open = [](void* const arguments[warp_size]) {
    std::vector<int> waiting;
    Fence* fence = nullptr;
    for (int i = 0; i < warp_size; ++i)
      if (auto* a = static_cast<Argument*>(arguments[i])) {
        fence = a->fence;
        waiting.push_back(a->thread);
      }
    observer::open(*fence, waiting);
  };
  collective(open, mask, false, &argument, __builtin_return_address(0));
  observer::leave(fence, generation);
}

int block_barrier(int id, int count, bool vote, int site) {
  if (skipped(site)) return 0;
  Barrier& barrier = barriers[id & 15];
  const unsigned generation = barrier.fence.generation;
  observer::arrive(barrier.fence, running);
  barrier.waiting.push_back(running);
  barrier.votes += vote;
  ++barrier.arrived;
  wait_at(__builtin_return_address(0));
  open_if_complete(id & 15, count);
  yield();  // the last to arrive too, so that the order of warps is the scheduler's alone
  observer::leave(barrier.fence, generation);
  return barrier.result;
}

void block_arrive(int id, int count) {
  Barrier& barrier = barriers[id & 15];
  observer::arrive(barrier.fence, running);
  ++barrier.arrived;
  open_if_complete(id & 15, count);
}

void shuffle(void* const arguments[warp_size]) {
  for (int i = 0; i < warp_size; ++i)
    if (auto* mine = static_cast<Shuffle*>(arguments[i])) {
      const auto* from = static_cast<const Shuffle*>(arguments[mine->source & 31]);
      mine->result = from ? from->value : mine->value;
    }
}

void vote(void* const arguments[warp_size]) {
  uint32_t result = 0;
  for (int i = 0; i < warp_size; ++i)
    if (auto* mine = static_cast<const Vote*>(arguments[i])) result |= uint32_t(mine->value) << i;
  for (int i = 0; i < warp_size; ++i)
    if (auto* mine = static_cast<Vote*>(arguments[i])) mine->result = result;
}

}  // namespace emu
