// wgmma: products of 128 threads that run on while the threads do.
//
// A descriptor says where an operand lies in shared memory: its start, a swizzle, and two strides.
// With rows of S = 128, 64 or 32 swizzled bytes,
//   along k:  element (mn, k) at mn / 8 * stride + mn % 8 * S + 2k
//   across:   at mn / (S/2) * leading + mn % (S/2) * 2 + k / 8 * stride + k % 8 * S
// and without a swizzle 8 rows of 16 bytes are next to one another:
//   along k:  at mn / 8 * stride + mn % 8 * 16 + k / 8 * leading + k % 8 * 2
//   across:   at mn / 8 * stride + mn % 8 * 2 + k / 8 * leading + k % 8 * 16
// Of c, warp w of the four holds rows 16w to 16w + 15; with g = lane / 4 and t = lane % 4 register i
// is row g + 8 (i/2 % 2), column 8 (i/4) + 2t + i % 2. An operand in registers lies as mma.sync's does.
//
// Nothing makes the four warps meet, so each does its own rows when it comes by. A product reads its
// operands and makes its result at its issue, or at the wait for it, with NaN in the result's registers
// meanwhile. Hardware may do anything between.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "../cuda/types.h"
#include "observer.h"
#include "state.h"

namespace emu {
namespace {

constexpr int rows_of_warp = 16, most_columns = 256, warps_of_group = 4;

struct Operand {
  unsigned start, leading, stride;
  int swizzle, bytes;
  bool across;

  Operand(uint64_t descriptor, int bytes, bool across) : bytes(bytes), across(across) {
    start = (descriptor & 0x3fff) << 4;
    leading = (descriptor >> 16 & 0x3fff) << 4;
    stride = (descriptor >> 32 & 0x3fff) << 4;
    const int layout = descriptor >> 62;
    swizzle = layout ? 4 - layout : 0;
  }

  const unsigned char* at(int mn, int k) const {
    const int row = 16 << swizzle, along = k * bytes;
    unsigned offset = start;
    if (!swizzle && across) offset += mn / 8 * stride + mn % 8 * 2 + k / 8 * leading + k % 8 * 16;
    else if (!swizzle) offset += mn / 8 * stride + mn % 8 * 16 + along / 16 * leading + along % 16;
    else if (!across) offset += mn / 8 * stride + mn % 8 * row + along;
    else offset += mn / (row / 2) * leading + mn % (row / 2) * 2 + k / 8 * stride + k % 8 * row;
    offset ^= (offset >> 7 & ((1u << swizzle) - 1)) << 4;
    return dynamic_shared() + offset;
  }
};

struct Issued {
  WarpgroupProduct product;
  const unsigned* a[warp_size];
  void* c[warp_size];
  uint32_t group;
};

// Registers that the thread must leave alone until the group is waited for.
struct Busy {
  const char* begin;
  size_t bytes;
  bool result;
  uint32_t group;
  const void* caller;
  std::vector<char> held;  // a result's value, while its registers hold NaN
};

struct Warp {
  std::deque<Issued> issued;  // that have not run yet
  int actor = -1;
  long products = 0;
  int registers = 0;  // of a thread; 0: as the block was launched
};

std::vector<Warp> warps;
std::vector<uint32_t> committed;       // groups, by thread
std::vector<std::vector<Busy>> busy;   // by thread
std::vector<char> fenced;              // by thread: no registers were written since the last fence

bool is_wide(const WarpgroupProduct& product) { return product.element == Element::tfloat32; }
int depth_of(const WarpgroupProduct& product) { return is_wide(product) ? 8 : 16; }
int bytes_of(const WarpgroupProduct& product) { return is_wide(product) ? 4 : 2; }

float value(Element element, const void* at) {
  if (element == Element::tfloat32) {  // of which the low 13 bits are ignored
    uint32_t bits;
    memcpy(&bits, at, sizeof(bits));
    return bits_as<float>(bits & ~0x1fffu);
  }
  uint16_t bits;
  memcpy(&bits, at, sizeof(bits));
  return element == Element::bfloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
}

size_t result_bytes(const WarpgroupProduct& product) {
  return product.n / 2 * (product.half_result ? 2 : 4);
}

Busy* result_at(int thread, const void* c) {
  for (Busy& one : busy[thread])
    if (one.result && one.begin == c) return &one;
  return nullptr;
}

void restore(int thread, void* c) {
  Busy* one = result_at(thread, c);
  if (!one || one->held.empty()) return;
  memcpy(c, one->held.data(), one->held.size());
  one->held.clear();
}

// The rows of c that this warp holds.
void multiply(int warp, const Issued& issued) {
  const WarpgroupProduct& p = issued.product;
  const int depth = depth_of(p), bytes = bytes_of(p);
  const int first_row = warp % warps_of_group * rows_of_warp;
  static float a[rows_of_warp][16], b[16][most_columns], sums[rows_of_warp][most_columns];
  const Operand in_a(p.a_descriptor, bytes, p.a_across), in_b(p.b_descriptor, bytes, p.b_across);
  if (!issued.a[0])
    for (int row = 0; row < rows_of_warp; ++row)
      for (int k = 0; k < depth; ++k)
        a[row][k] = p.a_sign * value(p.element, in_a.at(first_row + row, k));
  else
    for (int lane = 0; lane < warp_size; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i % 2 * 8, t = lane % 4;
        const auto* at = reinterpret_cast<const char*>(issued.a[lane] + i);
        if (bytes == 4) a[row][t + i / 2 * 4] = p.a_sign * value(p.element, at);
        else
          for (int half = 0; half < 2; ++half)
            a[row][2 * t + half + i / 2 * 8] = p.a_sign * value(p.element, at + 2 * half);
      }
  for (int column = 0; column < p.n; ++column)
    for (int k = 0; k < depth; ++k)
      b[k][column] = p.b_sign * value(p.element, in_b.at(column, k));
  for (int row = 0; row < rows_of_warp; ++row) {
    std::fill_n(sums[row], p.n, 0.0f);
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < p.n; ++column) sums[row][column] += a[row][k] * b[k][column];
  }
  for (int lane = 0; lane < warp_size; ++lane)
    for (int i = 0; i < p.n / 2; ++i) {
      const float sum = sums[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
      if (p.half_result) {
        auto& c = static_cast<uint16_t*>(issued.c[lane])[i];
        c = float_to_half(p.accumulates ? half_to_float(c) + sum : sum);
      } else {
        auto& c = static_cast<float*>(issued.c[lane])[i];
        c = p.accumulates ? c + sum : sum;
      }
    }
}

void run(int warp, const Issued& issued) {
  for (int lane = 0; lane < warp_size; ++lane) restore(warp * warp_size + lane, issued.c[lane]);
  multiply(warp, issued);
}

// What the warp reads of an operand, sixteen bytes at a time.
void note_operand(const Operand& operand, int first, int count, int depth, int warp,
                  uint32_t epoch, const Order& order, const void* caller) {
  constexpr int chunk = 16;
  const int whole = chunk / operand.bytes;
  const int step_mn = operand.across ? whole : 1, step_k = operand.across ? 1 : whole;
  for (int mn = first; mn < first + count; mn += step_mn)
    for (int k = 0; k < depth; k += step_k)
      observer::async_access(warps[warp].actor, epoch, order, warp * warp_size, operand.at(mn, k),
                             chunk, false, caller);
}

struct Lane {
  const WarpgroupProduct* product;
  int thread;
  const void* caller;
};

// A result keeps its value aside, and its registers are NaN, until the product has run.
void take_registers(const Lane& lane, uint32_t group) {
  const WarpgroupProduct& p = *lane.product;
  std::vector<Busy>& mine = busy[lane.thread];
  if (p.a_registers)
    mine.push_back({reinterpret_cast<const char*>(p.a_registers), 16, false, group, lane.caller});
  const size_t bytes = result_bytes(p);
  Busy* result = result_at(lane.thread, p.c);
  if (!result) {
    mine.push_back({static_cast<const char*>(p.c), bytes, true, group, lane.caller});
    result = &mine.back();
  }
  result->group = group;
  if (!launch.late || !result->held.empty()) return;
  result->held.assign(result->begin, result->begin + bytes);
  memset(p.c, 0xff, bytes);
}

void issue(void* const arguments[warp_size]) {
  for (int lane = 0; lane < warp_size; ++lane)
    if (!arguments[lane]) return;  // reported by whoever called
  const Lane& first = *static_cast<const Lane*>(arguments[0]);
  const int warp = first.thread / warp_size;
  Issued issued{*first.product};
  issued.group = committed[first.thread] + 1;
  if (warps[warp].actor < 0) warps[warp].actor = observer::new_actor();
  ++warps[warp].products;
  const WarpgroupProduct& p = issued.product;
  const Order order = observer::issued_by(warp * warp_size, warp_size);
  const int depth = depth_of(p), bytes = bytes_of(p);
  if (!p.a_registers)
    note_operand({p.a_descriptor, bytes, p.a_across}, warp % warps_of_group * rows_of_warp,
                 rows_of_warp, depth, warp, issued.group, order, first.caller);
  note_operand({p.b_descriptor, bytes, p.b_across}, 0, p.n, depth, warp, issued.group, order,
               first.caller);
  for (int i = 0; i < warp_size; ++i) {
    const Lane& lane = *static_cast<const Lane*>(arguments[i]);
    issued.a[i] = lane.product->a_registers;
    issued.c[i] = lane.product->c;
    take_registers(lane, issued.group);
  }
  if (launch.late) warps[warp].issued.push_back(issued);
  else multiply(warp, issued);
}

struct Wait {
  int thread, pending;
};

void finish_products(void* const arguments[warp_size]) {
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto* wait = static_cast<const Wait*>(arguments[lane]);
    if (!wait) continue;
    const int thread = wait->thread, warp = thread / warp_size;
    const uint32_t all = committed[thread];
    const uint32_t done = all - std::min<uint32_t>(all, wait->pending);
    for (auto& queue = warps[warp].issued; !queue.empty() && queue.front().group <= done;) {
      run(warp, queue.front());
      queue.pop_front();
    }
    std::erase_if(busy[thread], [&](const Busy& one) { return one.group <= done; });
    if (warps[warp].actor >= 0) observer::complete(thread, warps[warp].actor, done);
  }
}

// Results that run one after another may be held for a later group: then they are put aside again.
void hold_again(int thread) {
  for (Busy& one : busy[thread])
    if (launch.late && one.result && one.held.empty()) {
      one.held.assign(one.begin, one.begin + one.bytes);
      memset(const_cast<char*>(one.begin), 0xff, one.bytes);
    }
}

// Who asks for more than is left waits for others to give some back.
void check_registers() {
  constexpr int all = 65536;
  int asked = 0, first = -1;
  const int launched = all / (int(warps.size()) * warp_size) / 8 * 8;
  for (size_t i = 0; i < warps.size(); ++i) {
    if (warps[i].registers) first = i * warp_size;
    asked += (warps[i].registers ? warps[i].registers : launched) * warp_size;
  }
  if (first >= 0 && asked > all)
    report({"deadlock", nullptr, 0, 0, nullptr, nullptr, first, -1,
            keep("warpgroups ask for " + std::to_string(asked) + " registers of 65536")});
}

}  // namespace

void begin_warpgroups() {
  warps.assign((launch.thread_count + warp_size - 1) / warp_size, {});
  committed.assign(launch.thread_count, 0);
  busy.assign(launch.thread_count, {});
  fenced.assign(launch.thread_count, false);
}

void end_warpgroups() {
  check_registers();
  for (size_t first = 0; first < warps.size(); first += warps_of_group)
    for (size_t i = first; i < std::min(first + warps_of_group, warps.size()); ++i)
      if (warps[i].products != warps[first].products)
        report({"barrier divergence", nullptr, 0, 0, nullptr, nullptr, int(first * warp_size),
                int(i * warp_size), "warps of one warpgroup take part in different products"});
}

void multiply_warpgroup(const WarpgroupProduct& product) {
  const int thread = current_thread();
  const void* caller = __builtin_return_address(0);
  if (!fenced[thread])
    report({"race", nullptr, 0, 0, caller, nullptr, thread, -1,
            "a warpgroup's product without warpgroup_arrive before it"});
  Lane lane{&product, thread, caller};
  collective(issue, all_lanes, true, &lane, caller);
}

void warpgroup_fence(int site) {
  if (!skipped(site)) fenced[current_thread()] = true;
}

void commit_products() {
  ++committed[current_thread()];
  fenced[current_thread()] = false;
}

void wait_products(int pending, int site) {
  if (skipped(site)) return;
  Wait wait{current_thread(), pending};
  collective(finish_products, all_lanes, true, &wait, __builtin_return_address(0));
  hold_again(current_thread());
}

void set_registers(int count) { warps[current_thread() / warp_size].registers = count; }

unsigned shared_address(const void* at) {
  bool inside;
  const Region* region = find_region(at, inside);
  if (region != &regions[0]) fail("a descriptor of something outside of dynamic shared memory");
  return static_cast<const unsigned char*>(at) - region->begin;
}

void registers_touched(const void* at, size_t bytes, bool writes, const void* caller) {
  const int thread = current_thread();
  if (thread < 0 || size_t(thread) >= busy.size() || busy[thread].empty()) return;
  static const Region registers{"registers", nullptr, 0, false};
  const auto* begin = static_cast<const char*>(at);
  for (const Busy& one : busy[thread]) {
    if (begin + bytes <= one.begin || one.begin + one.bytes <= begin) continue;
    if (!one.result && !writes) continue;
    const long low = std::max(0L, long(begin - one.begin));
    report({"race", &registers, low, low + long(bytes), caller, one.caller, thread, thread,
            one.result ? "a result that was not waited for"
                       : "an operand of a product that was not waited for"});
    return;
  }
}

}  // namespace emu
