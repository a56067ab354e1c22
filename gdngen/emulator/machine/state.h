// What the parts of the machine share: the launch, its memory, and what was found.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "machine.h"
#include "observer.h"

namespace emu {

struct Launch {
  Index grid, threads;
  int thread_count;
  size_t shared_bytes;
  int order;        // 0: warps and lanes ascending, 1: descending, others: shuffled by this seed
  bool late;        // asynchronous copies land at the wait for them, not at their issue
  int skipped_site; // a wait to leave out, or -1
};
extern Launch launch;

// Whether the launch leaves this wait out; counts how often a thread came by.
bool skipped(int site);
extern long skipped_waits;

// The thread whose fiber runs, within its block.
int current_thread();

// Waits until somebody wakes the thread that runs, and `done` holds: `why` is told of a deadlock.
void sleep_until(const std::function<bool()>& done, const std::function<std::string()>& why,
                 const void* caller);
void wake(int thread);

// --- what parts of the machine do at a block's ends, and for the scheduler -----------------------

void begin_copies();
void begin_phases();
void begin_bulk();
void begin_warpgroups();
// Warps of one warpgroup must have taken part in the same products.
void end_warpgroups();
void end_stores();  // of the thread that runs
// Lets one load that is under way land, too late if the block has ended; false if there is none.
bool land_one_copy(bool ended);
// The same for copies that arrive at a barrier.
bool land_one_arrival();
// Somebody who has seen `order` arrives.
void phase_arrives(void* barrier, const Order& order);
// A barrier takes note that bytes have landed; epochs of its actor count its phases.
int phase_actor(void* barrier, const void* caller);
uint32_t phase_epoch(void* barrier);
void phase_lands(void* barrier, unsigned bytes);

// --- memory that a kernel may touch --------------------------------------------------------------

// Shared memory or one tensor. All regions but static shared memory lie in one arena with guard
// zones between them, so that an access just outside a region hits nothing else and can be named.
struct Region {
  std::string name;  // "shared", "static shared", or the tensor's parameter
  unsigned char* begin;
  size_t bytes;
  bool shared;
  bool holds(const void* at) const { return size_t((const unsigned char*)at - begin) < bytes; }
};
extern std::vector<Region> regions;  // regions[0] is dynamic shared memory

// Places `names` of `sizes` bytes in the arena after dynamic shared memory; their order is kept.
void lay_out(const std::vector<std::string>& names, const std::vector<size_t>& sizes);
// The region of an address, the nearest one for an address in a guard zone (`inside` false), or
// null for memory that is the thread's own.
const Region* find_region(const void* at, bool& inside);

// --- findings ------------------------------------------------------------------------------------

// Findings of one kind between the same two places in the code are one, with a growing byte range.
struct Found {
  const char* kind;
  const Region* region;     // null where no memory is concerned
  long low, high;           // bytes of the region, [low, high)
  const void *caller, *other_caller;
  int thread, other_thread; // -1: none
  const char* note;
};
void report(const Found& found);
void report_access(const char* kind, const void* at, size_t bytes, const void* caller,
                   const char* note);
// A note that lives as long as the findings.
const char* keep(const std::string& note);
// Writes the findings out and ends the process.
[[noreturn]] void finish(int status);
// Ends the process because the emulator cannot go on.
[[noreturn]] void fail(const char* reason);

}  // namespace emu
