// The race detector: happens-before by vector clocks, exact for the path that a run takes.
//
// The kernel is compiled with the compiler's ThreadSanitizer instrumentation, which calls a
// function before every load and store; this file defines those functions. For each byte that
// threads share it keeps the last write and the reads since that no later read has seen. Two
// accesses by different threads, one a write, race unless a barrier orders them: no luck with
// timing is needed.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "observer.h"
#include "state.h"

namespace emu {
namespace {

struct Access {
  uint32_t clock;  // the thread's own clock at the access; 0: no access
  uint32_t caller; // a program that is linked at a fixed address has its code below 4 GiB
  uint16_t thread;
  const void* code() const { return reinterpret_cast<const void*>(uintptr_t(caller)); }
};

// All zeros before the first access.
struct Byte {
  Access write, read;
  std::vector<Access>* more_reads;  // concurrent with `read` and with one another
  uint32_t block;                   // that the accesses belong to
  bool written;                     // in this block (shared memory) or at all
  bool in_flight;                   // by an asynchronous copy that nobody has waited for
  bool atomic;                      // the last write was an atomic instruction's
  bool foreign_write, foreign_read; // by earlier blocks, which nothing orders with this one
};

enum class Mode { read, write, atomic };

std::vector<Byte*> shadows;                 // by region
std::vector<std::vector<uint32_t>> clocks;  // clocks[a][b]: the latest of b that a has seen
uint32_t block_number = 0;
const void* last_caller = nullptr;

// A conflict between writes that is a race only if the bytes change; the store is yet to happen.
struct Pending {
  bool active = false;
  Found found;
  unsigned char before[16];
} pending;

void settle() {
  if (!pending.active) return;
  pending.active = false;
  const unsigned char* now = pending.found.region->begin + pending.found.low;
  const size_t bytes = pending.found.high - pending.found.low;
  if (bytes > sizeof(pending.before) || memcmp(now, pending.before, bytes)) report(pending.found);
}

bool seen(const Access& access, int by) {
  return access.clock <= clocks[by][access.thread];
}

void forget(Access& access) { access.clock = 0; }

void forget_reads(Byte& byte) {
  forget(byte.read);
  if (byte.more_reads) byte.more_reads->clear();
}

// Accesses of an earlier block stay on record only as that they were.
void enter_block(Byte& byte) {
  if (byte.block == block_number) return;
  byte.foreign_write |= byte.write.clock && !byte.atomic;
  byte.foreign_read |= byte.read.clock != 0;
  forget(byte.write);
  forget_reads(byte);
  byte.block = block_number;
}

const Access* unordered_read(const Byte& byte, int thread) {
  if (byte.read.clock && !seen(byte.read, thread)) return &byte.read;
  if (byte.more_reads)
    for (const Access& read : *byte.more_reads)
      if (!seen(read, thread)) return &read;
  return nullptr;
}

void remember_read(Byte& byte, const Access& access) {
  if (!byte.read.clock || seen(byte.read, access.thread)) {
    byte.read = access;
  } else {
    if (!byte.more_reads) byte.more_reads = new std::vector<Access>;
    for (Access& read : *byte.more_reads)
      if (seen(read, access.thread)) {
        read = access;
        return;
      }
    byte.more_reads->push_back(access);
    return;
  }
  if (byte.more_reads) std::erase_if(*byte.more_reads, [&](const Access& read) {
    return seen(read, access.thread);
  });
}

struct Conflict {
  const char* note = nullptr;
  const Access* with = nullptr;
  bool both_write = false;
};

Conflict find_conflict(const Byte& byte, Mode mode, int thread) {
  if (byte.in_flight) return {"an asynchronous copy was not waited for", &byte.write};
  const bool both_atomic = mode == Mode::atomic && byte.atomic;
  const bool writes = mode != Mode::read;
  if (!both_atomic && byte.write.clock && !seen(byte.write, thread))
    return {writes ? "write after write" : "read after write", &byte.write, writes};
  if (writes)
    if (const Access* read = unordered_read(byte, thread)) return {"write after read", read};
  if (byte.foreign_write && !both_atomic) return {"another block writes it", nullptr, writes};
  if (byte.foreign_read && writes) return {"another block reads it", nullptr};
  return {};
}

void report_race(const Region& region, const unsigned char* low, const unsigned char* high,
                 const void* caller, int thread, const Conflict& conflict, Mode mode) {
  Found found{"race", &region, low - region.begin, high - region.begin, caller,
              conflict.with ? conflict.with->code() : nullptr, thread,
              conflict.with ? int(conflict.with->thread) : -1, conflict.note};
  if (!conflict.both_write || mode == Mode::atomic) return report(found);
  pending = {true, found, {}};
  memcpy(pending.before, low, std::min<size_t>(high - low, sizeof(pending.before)));
}

void access(const void* at, size_t bytes, Mode mode, const void* caller) {
  settle();
  bool inside;
  const Region* region = find_region(at, inside);
  if (!region) return;
  last_caller = caller;
  const int thread = current_thread();
  auto* begin = static_cast<const unsigned char*>(at);
  if (!inside || begin + bytes > region->begin + region->bytes)
    return report_access("out of bounds", at, bytes, caller, mode == Mode::read ? "read" : "write");

  Byte* shadow = shadows[region - regions.data()] + (begin - region->begin);
  const Access now{clocks[thread][thread], uint32_t(uintptr_t(caller)), uint16_t(thread)};
  const unsigned char *racy_low = nullptr, *racy_high = nullptr, *unwritten = nullptr;
  Conflict first;
  Access other;
  for (size_t i = 0; i < bytes; ++i) {
    Byte& byte = shadow[i];
    enter_block(byte);
    if (const Conflict conflict = find_conflict(byte, mode, thread); conflict.note) {
      if (!racy_low) {
        racy_low = begin + i;
        first = conflict;
        if (conflict.with) other = *conflict.with, first.with = &other;
      }
      racy_high = begin + i + 1;
    }
    if (mode != Mode::write) {
      if (region->shared && !byte.written) unwritten = unwritten ? unwritten : begin + i;
    }
    if (mode == Mode::read) remember_read(byte, now);
    if (mode != Mode::read) {
      byte.write = now;
      byte.written = true;
      byte.in_flight = false;
      byte.atomic = mode == Mode::atomic;
      forget_reads(byte);
    }
  }
  if (racy_low) report_race(*region, racy_low, racy_high, caller, thread, first, mode);
  if (unwritten)
    report_access("uninitialised shared read", unwritten, begin + bytes - unwritten, caller, "");
}

template <class Change> void for_bytes(void* to, size_t bytes, Change change) {
  bool inside;
  const Region* region = find_region(to, inside);
  if (!region || !inside) return;
  const size_t offset = static_cast<unsigned char*>(to) - region->begin;
  for (size_t i = offset; i < std::min(offset + bytes, region->bytes); ++i)
    change(shadows[region - regions.data()][i]);
}

}  // namespace

void note_read(const void* from, size_t bytes, void* caller) {
  access(from, bytes, Mode::read, caller);
}
void note_write(void* to, size_t bytes, void* caller) { access(to, bytes, Mode::write, caller); }
void note_atomic(void* at, size_t bytes) {
  access(at, bytes, Mode::atomic, __builtin_return_address(0));
}

const void* last_known_caller() { return last_caller; }

namespace observer {

void begin_block(int threads) {
  ++block_number;
  shadows.resize(regions.size());
  for (size_t i = 0; i < regions.size(); ++i) {
    const size_t bytes = regions[i].bytes;
    if (!shadows[i]) {  // large tensors are touched in part, so their pages come when needed
      shadows[i] = static_cast<Byte*>(calloc(bytes, sizeof(Byte)));
    } else if (regions[i].shared) {
      for (size_t j = 0; j < bytes; ++j) delete shadows[i][j].more_reads;
      memset(static_cast<void*>(shadows[i]), 0, bytes * sizeof(Byte));
    }
  }
  clocks.assign(threads, std::vector<uint32_t>(threads, 0));
  for (int i = 0; i < threads; ++i) clocks[i][i] = 1;
}

void end_block() { settle(); }
void begin_thread(int) {}
void end_thread(int) { settle(); }
void turn_to(int) { settle(); }

void arrive(Fence& fence, int thread) {
  settle();
  std::vector<uint32_t>& clock = clocks[thread];
  fence.clock.resize(clock.size(), 0);
  for (size_t i = 0; i < clock.size(); ++i) fence.clock[i] = std::max(fence.clock[i], clock[i]);
  ++clock[thread];
}

void open(Fence& fence, const std::vector<int>& waiting) {
  for (int thread : waiting) {
    std::vector<uint32_t>& clock = clocks[thread];
    for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], fence.clock[i]);
  }
  fence.clock.clear();
  ++fence.generation;
}

void leave(Fence&, unsigned) {}

void copy_starts(int, void* to, size_t bytes, const void* caller) {
  access(to, bytes, Mode::write, caller);
  for_bytes(to, bytes, [](Byte& byte) { byte.in_flight = true; });
}

void copy_lands(int thread, void* to, size_t bytes, const void*) {
  for_bytes(to, bytes, [&](Byte& byte) {
    if (!byte.in_flight || byte.write.thread != thread) return;
    byte.in_flight = false;
    byte.write.clock = clocks[thread][thread];
  });
}

}  // namespace observer
}  // namespace emu

// --- what the instrumented kernel calls ----------------------------------------------------------

#define CALLER __builtin_return_address(0)
#define READ(at, bytes) emu::access(at, bytes, emu::Mode::read, CALLER)
#define WRITE(at, bytes) emu::access(at, bytes, emu::Mode::write, CALLER)
#define SIZED(bytes)                                                       \
  void __tsan_read##bytes(void* at) { READ(at, bytes); }                   \
  void __tsan_write##bytes(void* at) { WRITE(at, bytes); }                 \
  void __tsan_unaligned_read##bytes(void* at) { READ(at, bytes); }         \
  void __tsan_unaligned_write##bytes(void* at) { WRITE(at, bytes); }
extern "C" {
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)
void __tsan_read_range(void* at, size_t bytes) { READ(at, bytes); }
void __tsan_write_range(void* at, size_t bytes) { WRITE(at, bytes); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  READ(from, bytes);
  WRITE(to, bytes);
  return memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  WRITE(to, bytes);
  return memset(to, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
