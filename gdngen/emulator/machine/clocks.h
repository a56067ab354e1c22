// The vector clocks of shadow.cpp: what every thread has seen of every other, and of actors.
#pragma once
#include "observer.h"

namespace emu {

extern std::vector<Order> orders;  // by thread
void begin_clocks(int threads);
// Judges the write that was under way when it was last seen; before any clock goes on.
void settle();

}  // namespace emu
