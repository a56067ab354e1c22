// The vector clocks of shadow.cpp. A thread's own place counts its releases; an actor's, its epochs.
#include "clocks.h"

#include <algorithm>

#include "state.h"

namespace emu {

std::vector<Order> orders;

namespace {

constexpr int most_actors = 128;
int actors = 0;  // in this block, after the threads

void join(std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

void begin_clocks(int threads) {
  const std::vector<uint32_t> nothing(threads + most_actors, 0);
  orders.assign(threads, {nothing, nothing});
  for (int i = 0; i < threads; ++i) orders[i].seen[i] = 1;
  actors = 0;
}

void Order::join(const Order& other) {
  emu::join(seen, other.seen);
  emu::join(fenced, other.fenced);
}

namespace observer {

void release(Order& order, int thread) {
  settle();
  order.join(orders[thread]);
  ++orders[thread].seen[thread];
}

void acquire(const Order& order, int thread) { orders[thread].join(order); }

void arrive(Fence& fence, int thread) { release(fence.order, thread); }

void open(Fence& fence, const std::vector<int>& waiting) {
  for (int thread : waiting) acquire(fence.order, thread);
  fence.order = {};
  ++fence.generation;
}

void leave(Fence&, unsigned) {}

uint32_t stamp(int thread) { return orders[thread].seen[thread]; }
bool has_seen(const Order& order, int thread, uint32_t stamp) {
  return size_t(thread) < order.seen.size() && stamp <= order.seen[thread];
}
bool thread_has_seen(int thread, int other, uint32_t stamp) {
  return has_seen(orders[thread], other, stamp);
}

bool has_seen_all(int thread, const Order& order) {
  const std::vector<uint32_t>& mine = orders[thread].seen;
  for (size_t i = 0; i < order.seen.size(); ++i)
    if (order.seen[i] > mine[i]) return false;
  return true;
}

int new_actor() {
  if (actors == most_actors) fail("too many barriers and asynchronous copies in one block");
  return launch.thread_count + actors++;
}

void proxy_fence(int thread) {
  settle();
  join(orders[thread].fenced, orders[thread].seen);
  // What it writes from now on is not behind the fence.
  ++orders[thread].seen[thread];
}

Order issued_by(int first, int count) {
  Order order = orders[first];
  for (int i = 1; i < count; ++i) order.join(orders[first + i]);
  return order;
}

void complete(int thread, int actor, uint32_t epoch) {
  uint32_t& known = orders[thread].seen[actor];
  known = std::max(known, epoch);
}

void complete(Order& order, int actor, uint32_t epoch) {
  order.seen.resize(launch.thread_count + most_actors, 0);
  order.seen[actor] = std::max(order.seen[actor], epoch);
}

void step(int thread) {
  settle();
  ++orders[thread].seen[thread];
}

}  // namespace observer
}  // namespace emu
