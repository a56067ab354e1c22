// The arena that a kernel's memory lies in, and the record of what was found.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

#include "state.h"

// The section that static __shared__ arrays are in; absent if a kernel has none.
extern "C" [[gnu::weak]] unsigned char __start_emu_shared[], __stop_emu_shared[];

namespace emu {

std::vector<Region> regions;

namespace {

constexpr size_t guard = 1 << 20, page = 4096;
unsigned char* arena = nullptr;
size_t arena_bytes = 0;

using Place = std::tuple<std::string, const Region*, const void*, const void*, std::string>;
struct Entry {
  Found found;
  long count;
};
std::map<Place, Entry> findings;

}  // namespace

void lay_out(const std::vector<std::string>& names, const std::vector<size_t>& sizes) {
  regions = {{"shared", nullptr, launch.shared_bytes, true}};
  for (size_t i = 0; i < names.size(); ++i) regions.push_back({names[i], nullptr, sizes[i], false});
  const auto rounded = [](size_t bytes) { return (bytes + page - 1) / page * page; };
  arena_bytes = guard;
  for (const Region& region : regions) arena_bytes += rounded(region.bytes) + guard;
  arena = static_cast<unsigned char*>(mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  unsigned char* next = arena + guard;
  for (Region& region : regions) {
    region.begin = next;
    next += rounded(region.bytes) + guard;
  }
  if (__start_emu_shared)
    regions.push_back({"static shared", __start_emu_shared,
                       size_t(__stop_emu_shared - __start_emu_shared), true});
}

const Region* find_region(const void* at, bool& inside) {
  static size_t latest = 0;
  inside = true;
  if (regions[latest].holds(at)) return &regions[latest];
  const bool in_arena = size_t(static_cast<const unsigned char*>(at) - arena) < arena_bytes;
  if (!in_arena && !regions.back().holds(at)) return nullptr;
  for (size_t i = 0; i < regions.size(); ++i)
    if (regions[i].holds(at)) return &regions[latest = i];
  inside = false;
  const Region* nearest = &regions[0];
  size_t least = ~size_t(0);
  for (const Region& region : regions) {
    const auto* address = static_cast<const unsigned char*>(at);
    const size_t distance = address < region.begin ? region.begin - address
                                                   : address - (region.begin + region.bytes);
    if (distance < least) least = distance, nearest = &region;
  }
  return nearest;
}

void report(const Found& found) {
  const Place place{found.kind, found.region, found.caller, found.other_caller, found.note};
  auto [entry, is_new] = findings.try_emplace(place, Entry{found, 0});
  Found& known = entry->second.found;
  known.low = std::min(known.low, found.low);
  known.high = std::max(known.high, found.high);
  ++entry->second.count;
}

void report_access(const char* kind, const void* at, size_t bytes, const void* caller,
                   const char* note) {
  bool inside;
  const Region* region = find_region(at, inside);
  const long low = region ? static_cast<const unsigned char*>(at) - region->begin : 0;
  report({kind, region, low, low + long(bytes), caller, nullptr, current_thread(), -1, note});
}

void move_unseen(void* to, const void* from, size_t bytes) {
  __builtin_memcpy(to, from, bytes);
}

void misaligned(const void* at, size_t bytes, void* caller) {
  report_access("misaligned", at, bytes, caller ? caller : __builtin_return_address(0), "");
  finish(0);
}

const char* keep(const std::string& note) {
  static std::set<std::string> notes;
  return notes.insert(note).first->c_str();
}

void fail(const char* reason) {
  fprintf(stderr, "%s\n", reason);
  fflush(stderr);
  _exit(3);
}

// One line a finding: kind, region, low, high, callers, threads, count, note, tab between them.
void finish(int status) {
  for (const auto& [place, entry] : findings) {
    const Found& f = entry.found;
    printf("finding\t%s\t%s\t%ld\t%ld\t%lx\t%lx\t%d\t%d\t%ld\t%s\n", f.kind,
           f.region ? f.region->name.c_str() : "", f.low, f.high, long(f.caller),
           long(f.other_caller), f.thread, f.other_thread, entry.count, f.note);
  }
  fflush(stdout);
  _exit(status);
}

}  // namespace emu
