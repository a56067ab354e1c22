// The race detector: happens-before by vector clocks, exact for the path that a run takes.
//
// The kernel is compiled with the compiler's ThreadSanitizer instrumentation, which calls a
// function before every load and store; this file defines those functions. For each byte that
// threads share it keeps the last write and the reads since that no later read has seen. Two
// accesses by different threads, one a write, race unless a barrier orders them: no luck with
// timing is needed.
//
// Operations of the asynchronous proxy are accesses of actors, which have a place in every clock
// beside the threads. They rely on what their issuers had seen; nobody has seen them before their
// epoch was waited for. What threads wrote they may use only if a proxy fence lies between.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "clocks.h"
#include "state.h"

namespace emu {
namespace {

struct Access {
  uint32_t clock;  // the thread's own clock at the access, or an actor's epoch; 0: no access
  uint32_t caller; // a program that is linked at a fixed address has its code below 4 GiB
  uint16_t thread; // or, past the threads, an actor
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

// Who accesses memory: a thread, or an actor on behalf of the threads that issued its operation.
struct Party {
  int id;
  uint32_t clock;
  const Order& order;
  int thread;
  bool asynchronous;
};

std::vector<Byte*> shadows;  // by region
uint32_t block_number = 0;
const void* last_caller = nullptr;

// A conflict between writes that is a race only if the bytes change; the store is yet to happen.
struct Pending {
  bool active = false;
  Found found;
  unsigned char before[16];
} pending;

bool is_thread(int id) { return id < launch.thread_count; }
int thread_of(const Access& access) { return is_thread(access.thread) ? access.thread : -1; }

bool seen(const Access& access, const Order& by) {
  return access.clock <= by.seen[access.thread];
}

bool unfenced(const Access& write, const Order& by) {
  return is_thread(write.thread) && write.clock > by.fenced[write.thread];
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

const Access* unordered_read(const Byte& byte, const Order& order) {
  if (byte.read.clock && !seen(byte.read, order)) return &byte.read;
  if (byte.more_reads)
    for (const Access& read : *byte.more_reads)
      if (!seen(read, order)) return &read;
  return nullptr;
}

// An actor's later read stands for its earlier ones: whoever has seen it has seen those.
bool covers(const Access& later, const Order& order, const Access& earlier) {
  return seen(earlier, order) || (earlier.thread == later.thread && earlier.clock <= later.clock);
}

void remember_read(Byte& byte, const Access& access, const Order& order) {
  if (!byte.read.clock || covers(access, order, byte.read)) {
    byte.read = access;
  } else {
    if (!byte.more_reads) byte.more_reads = new std::vector<Access>;
    for (Access& read : *byte.more_reads)
      if (covers(access, order, read)) {
        read = access;
        return;
      }
    byte.more_reads->push_back(access);
    return;
  }
  if (byte.more_reads) std::erase_if(*byte.more_reads, [&](const Access& read) {
    return covers(access, order, read);
  });
}

struct Conflict {
  const char* note = nullptr;
  const Access* with = nullptr;
  bool both_write = false;
  const char* kind = "race";
};

Conflict find_conflict(const Byte& byte, Mode mode, const Party& party) {
  if (byte.in_flight) return {"an asynchronous copy was not waited for", &byte.write};
  const bool both_atomic = mode == Mode::atomic && byte.atomic;
  const bool writes = mode != Mode::read;
  if (!both_atomic && byte.write.clock && !seen(byte.write, party.order)) {
    // What an asynchronous operation writes is not there yet to be compared.
    const bool comparable = writes && !party.asynchronous && is_thread(byte.write.thread);
    return {writes ? "write after write" : "read after write", &byte.write, comparable};
  }
  if (writes)
    if (const Access* read = unordered_read(byte, party.order)) return {"write after read", read};
  if (party.asynchronous && byte.write.clock && unfenced(byte.write, party.order))
    return {writes ? "write after write" : "read after write", &byte.write, false,
            "missing proxy fence"};
  if (byte.foreign_write && !both_atomic) return {"another block writes it", nullptr, writes};
  if (byte.foreign_read && writes) return {"another block reads it", nullptr};
  return {};
}

void report_race(const Region& region, const unsigned char* low, const unsigned char* high,
                 const void* caller, int thread, const Conflict& conflict, Mode mode) {
  Found found{conflict.kind, &region, low - region.begin, high - region.begin, caller,
              conflict.with ? conflict.with->code() : nullptr, thread,
              conflict.with ? thread_of(*conflict.with) : -1, conflict.note};
  if (!conflict.both_write || mode == Mode::atomic) return report(found);
  pending = {true, found, {}};
  memcpy(pending.before, low, std::min<size_t>(high - low, sizeof(pending.before)));
}

void access(const void* at, size_t bytes, Mode mode, const void* caller, const Party& party) {
  settle();
  bool inside;
  const Region* region = find_region(at, inside);
  if (!region) return registers_touched(at, bytes, mode != Mode::read, caller);
  last_caller = caller;
  auto* begin = static_cast<const unsigned char*>(at);
  if (!inside || begin + bytes > region->begin + region->bytes)
    return report_access("out of bounds", at, bytes, caller, mode == Mode::read ? "read" : "write");

  Byte* shadow = shadows[region - regions.data()] + (begin - region->begin);
  const Access now{party.clock, uint32_t(uintptr_t(caller)), uint16_t(party.id)};
  const unsigned char *racy_low = nullptr, *racy_high = nullptr, *unwritten = nullptr;
  Conflict first;
  Access other;
  for (size_t i = 0; i < bytes; ++i) {
    Byte& byte = shadow[i];
    enter_block(byte);
    if (const Conflict conflict = find_conflict(byte, mode, party); conflict.note) {
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
    if (mode == Mode::read) remember_read(byte, now, party.order);
    if (mode != Mode::read) {
      byte.write = now;
      byte.written = true;
      byte.in_flight = false;
      byte.atomic = mode == Mode::atomic;
      forget_reads(byte);
    }
  }
  if (racy_low) report_race(*region, racy_low, racy_high, caller, party.thread, first, mode);
  if (unwritten)
    report_access("uninitialised shared read", unwritten, begin + bytes - unwritten, caller, "");
}

void access(const void* at, size_t bytes, Mode mode, const void* caller) {
  const int thread = current_thread();
  if (thread < 0) return;
  const Order& order = orders[thread];
  access(at, bytes, mode, caller, Party{thread, order.seen[thread], order, thread, false});
}

template <class Change> void for_bytes(const void* to, size_t bytes, Change change) {
  bool inside;
  const Region* region = find_region(to, inside);
  if (!region || !inside) return;
  const size_t offset = static_cast<const unsigned char*>(to) - region->begin;
  for (size_t i = offset; i < std::min(offset + bytes, region->bytes); ++i)
    change(shadows[region - regions.data()][i]);
}

}  // namespace

void settle() {
  if (!pending.active) return;
  pending.active = false;
  const unsigned char* now = pending.found.region->begin + pending.found.low;
  const size_t bytes = pending.found.high - pending.found.low;
  if (bytes > sizeof(pending.before) || memcmp(now, pending.before, bytes)) report(pending.found);
}

void note_read(const void* from, size_t bytes, void* caller) {
  access(from, bytes, Mode::read, caller);
}
void note_write(const void* to, size_t bytes, void* caller) {
  access(to, bytes, Mode::write, caller);
}
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
  begin_clocks(threads);
}

void end_block() { settle(); }
void begin_thread(int) {}
void end_thread(int) { settle(); }
void turn_to(int) { settle(); }

void async_access(int actor, uint32_t epoch, const Order& issuer, int thread, const void* at,
                  size_t bytes, bool writes, const void* caller) {
  access(at, bytes, writes ? Mode::write : Mode::read, caller,
         Party{actor, epoch, issuer, thread, true});
}

void async_lands(int actor, uint32_t epoch, const void* at, size_t bytes) {
  for_bytes(at, bytes, [&](Byte& byte) {
    if (byte.write.thread == actor && byte.write.clock == unknown_epoch) byte.write.clock = epoch;
  });
}

void copy_starts(int, void* to, size_t bytes, const void* caller) {
  access(to, bytes, Mode::write, caller);
  for_bytes(to, bytes, [](Byte& byte) { byte.in_flight = true; });
}

void copy_arrives(int thread, uint32_t stamp, void* to, size_t bytes) {
  for_bytes(to, bytes, [&](Byte& byte) {
    if (!byte.in_flight || byte.write.thread != thread) return;
    byte.in_flight = false;
    byte.write.clock = stamp;
  });
}

void copy_lands(int thread, void* to, size_t bytes, const void*) {
  copy_arrives(thread, orders[thread].seen[thread], to, bytes);
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
