// Copies of the asynchronous proxy (TMA): boxes of tensors, and bytes in a row.
//
// A load lands at its issue, or as late as can be: when no thread can go on. A store reads shared
// memory at its issue, or at the wait for it, and writes global memory then. Either may be what
// hardware does.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>

#include "observer.h"
#include "state.h"

namespace emu {
namespace {

// Bytes that one copy moves together; without a tensor's side, there is nothing but zeros or NaN.
struct Piece {
  unsigned char *shared, *global;
  int bytes;
};

struct Copy {
  std::vector<Piece> pieces;
  void* barrier = nullptr;  // of a load
  unsigned bytes = 0;
  int actor = -1;
  uint32_t fill = 0;        // what a load writes where there is no tensor, a 4-byte pattern
  const void* caller = nullptr;
};

struct Stores {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> committed;  // and not waited for, oldest first
  uint32_t groups = 0;                      // committed ever
  int reader = -1, writer = -1;             // actors
};

std::deque<Copy> loads;  // under way
std::map<int, Stores> stores;  // by thread
std::mt19937 shuffler;

constexpr int chunk = 16;  // bytes that a swizzle keeps together
constexpr int tile_alignment = 128;

// Bits of an address decide where within its row of 16 << swizzle bytes a chunk goes.
uintptr_t swizzled(uintptr_t address, int swizzle) {
  const uintptr_t mask = (1u << swizzle) - 1;
  return address ^ (address >> 7 & mask) << 4;
}

void check_alignment(const void* at, size_t bytes, void* caller) {
  if (reinterpret_cast<uintptr_t>(at) % bytes) misaligned(at, bytes, caller);
}

// The pieces of a box: row by row, each cut into chunks, each cut where the tensor ends.
std::vector<Piece> pieces_of(const TensorMap& map, const void* shared, const int* at) {
  std::vector<Piece> pieces;
  auto* to = static_cast<unsigned char*>(const_cast<void*>(shared));
  long rows = 1;
  for (int d = 1; d < map.rank; ++d) rows *= map.box[d];
  const long row_bytes = map.box[0] * map.element_bytes, width = map.shape[0] * map.element_bytes;
  for (long row = 0; row < rows; ++row) {
    unsigned char* global = map.base;
    bool inside = true;
    long rest = row;
    for (int d = 1; d < map.rank; ++d) {
      const long index = at[d] + rest % map.box[d];
      rest /= map.box[d];
      inside &= index >= 0 && index < map.shape[d];
      global += index * map.strides[d];
    }
    for (long byte = 0; byte < row_bytes; byte += chunk) {
      const auto linear = reinterpret_cast<uintptr_t>(to + row * row_bytes + byte);
      auto* place = reinterpret_cast<unsigned char*>(swizzled(linear, map.swizzle));
      const long first = long(at[0]) * map.element_bytes + byte, last = first + chunk;
      const long low = std::clamp(first, 0L, width), high = std::clamp(last, low, width);
      if (!inside || low == high) {
        pieces.push_back({place, nullptr, chunk});
        continue;
      }
      if (low > first) pieces.push_back({place, nullptr, int(low - first)});
      pieces.push_back({place + (low - first), global + low, int(high - low)});
      if (last > high) pieces.push_back({place + (high - first), nullptr, int(last - high)});
    }
  }
  return pieces;
}

std::vector<Piece> in_a_row(const void* shared, const void* global, unsigned bytes) {
  std::vector<Piece> pieces;
  auto* here = static_cast<unsigned char*>(const_cast<void*>(shared));
  auto* there = static_cast<unsigned char*>(const_cast<void*>(global));
  for (unsigned i = 0; i < bytes; i += chunk) pieces.push_back({here + i, there + i, chunk});
  return pieces;
}

void fill(const Piece& piece, uint32_t pattern) {
  for (int i = 0; i < piece.bytes; ++i)
    piece.shared[i] = pattern >> (reinterpret_cast<uintptr_t>(piece.shared + i) % 4 * 8);
}

void land(const Copy& load) {
  for (const Piece& piece : load.pieces)
    if (piece.global) move_unseen(piece.shared, piece.global, piece.bytes);
    else fill(piece, load.fill);
  const uint32_t epoch = phase_epoch(load.barrier);
  for (const Piece& piece : load.pieces)
    observer::async_lands(load.actor, epoch, piece.shared, piece.bytes);
  phase_lands(load.barrier, load.bytes);
}

void start_load(Copy load, void* caller) {
  const int thread = current_thread();
  load.actor = phase_actor(load.barrier, caller);
  load.caller = caller;
  const Order order = observer::issued_by(thread, 1);
  for (const Piece& piece : load.pieces) {
    if (piece.global)
      observer::async_access(load.actor, phase_epoch(load.barrier), order, thread, piece.global,
                             piece.bytes, false, caller);
    observer::async_access(load.actor, observer::unknown_epoch, order, thread, piece.shared,
                           piece.bytes, true, caller);
  }
  if (launch.late) loads.push_back(std::move(load));
  else land(load);
}

void move_out(const Copy& store) {
  for (const Piece& piece : store.pieces)
    if (piece.global) move_unseen(piece.global, piece.shared, piece.bytes);
}

void start_store(Copy store, void* caller) {
  const int thread = current_thread();
  Stores& mine = stores[thread];
  if (mine.reader < 0) mine.reader = observer::new_actor(), mine.writer = observer::new_actor();
  const Order order = observer::issued_by(thread, 1);
  const uint32_t epoch = mine.groups + 1;
  for (const Piece& piece : store.pieces) {
    if (!piece.global) continue;
    observer::async_access(mine.reader, epoch, order, thread, piece.shared, piece.bytes, false,
                           caller);
    observer::async_access(mine.writer, epoch, order, thread, piece.global, piece.bytes, true,
                           caller);
  }
  store.caller = caller;
  if (!launch.late) move_out(store);
  mine.open.push_back(std::move(store));
}

void left_behind(const Copy& copy, int thread) {
  report({"race", nullptr, 0, 0, copy.caller, nullptr, thread, -1,
          "the block ends while the copy is under way"});
}

}  // namespace

void begin_bulk() {
  loads.clear();
  stores.clear();
  shuffler.seed(launch.order);
}

bool land_one_copy(bool ended) {
  if (loads.empty()) return false;
  if (ended) left_behind(loads.front(), -1);
  size_t which = 0;  // the oldest, the newest, or any
  if (launch.order == 1) which = loads.size() - 1;
  if (launch.order > 1) which = shuffler() % loads.size();
  const Copy load = std::move(loads[which]);
  loads.erase(loads.begin() + which);
  land(load);
  return true;
}

void load_box(const TensorMap& map, void* barrier, void* to, const int* at) {
  void* caller = __builtin_return_address(0);
  check_alignment(to, tile_alignment, caller);
  Copy load{pieces_of(map, to, at), barrier};
  load.bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) load.bytes *= map.box[d];
  if (map.nan_outside) load.fill = map.floats ? ~0u : 0;
  start_load(std::move(load), caller);
}

void store_box(const TensorMap& map, const void* from, const int* at) {
  void* caller = __builtin_return_address(0);
  check_alignment(from, tile_alignment, caller);
  start_store({pieces_of(map, from, at)}, caller);
}

void load_bytes(void* to, const void* from, void* barrier, unsigned bytes) {
  void* caller = __builtin_return_address(0);
  for (const void* end : {static_cast<const void*>(to), from}) check_alignment(end, chunk, caller);
  start_load({in_a_row(to, from, bytes), barrier, bytes}, caller);
}

void store_bytes(void* to, const void* from, unsigned bytes) {
  void* caller = __builtin_return_address(0);
  for (const void* end : {static_cast<const void*>(to), from}) check_alignment(end, chunk, caller);
  start_store({in_a_row(from, to, bytes)}, caller);
}

void commit_stores() {
  const auto found = stores.find(current_thread());
  if (found == stores.end()) return;
  Stores& mine = found->second;
  mine.committed.push_back(std::move(mine.open));
  mine.open.clear();
  ++mine.groups;
}

void wait_stores(int pending, bool reads, int site) {
  if (skipped(site)) return;
  const int thread = current_thread();
  const auto found = stores.find(thread);
  if (found == stores.end()) return;
  Stores& mine = found->second;
  for (; mine.committed.size() > size_t(pending); mine.committed.pop_front())
    if (launch.late)
      for (const Copy& store : mine.committed.front()) move_out(store);
  const uint32_t done = mine.groups - std::min<uint32_t>(mine.groups, pending);
  observer::complete(thread, mine.reader, done);
  if (!reads) observer::complete(thread, mine.writer, done);
}

// Shared memory is another block's as soon as this one has ended.
void end_stores() {
  const auto found = stores.find(current_thread());
  if (found == stores.end()) return;
  commit_stores();
  for (const std::vector<Copy>& group : found->second.committed)
    if (!group.empty()) {
      left_behind(group.front(), current_thread());
      break;
    }
  wait_stores(0, false, -1);
}

}  // namespace emu
