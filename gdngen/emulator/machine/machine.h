// What a kernel may ask of the machine that runs it; cuda/*.h put CUDA's names on it.
//
// The machine runs one block at a time, a fiber for each CUDA thread, all on one thread of the
// host. A fiber runs until it waits: at a barrier, or at an instruction that its whole warp takes
// part in. `site` numbers a wait in the kernel's text, so that a run may leave one out; -1 has no
// number.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emu {

constexpr int warp_size = 32;
constexpr uint32_t all_lanes = 0xffffffffu;

struct Index { int x, y, z; };

// Constant while a thread lives, which lets the compiler fold repeated calls.
[[gnu::const]] Index thread_index();
[[gnu::const]] Index block_index();
[[gnu::const]] Index block_size();
[[gnu::const]] Index grid_size();
[[gnu::const]] int lane();

// Shared memory of the running block, as many bytes as the launch asked for.
[[gnu::const]] unsigned char* dynamic_shared();

// --- waiting -------------------------------------------------------------------------------------

// Waits until `mask`'s lanes have all called this with the same operation, then one of them applies
// the operation to every lane's argument (null for a lane that is not in the mask or has exited).
// With `converged` the hardware requires the whole warp; a lane that has exited is then a fault.
// Orders no memory accesses. `caller` is as for the accesses below; null: the caller of this.
using Operation = void (*)(void* const arguments[warp_size]);
void collective(Operation operation, uint32_t mask, bool converged, void* argument,
                const void* caller = nullptr);

// As above for `__syncwarp`, which does order the accesses of the lanes that take part.
void warp_barrier(uint32_t mask, int site);

// Waits at barrier `id` for `count` threads of the block, 0 for all of it. Orders their accesses.
// Returns how many of the threads gave a true `vote`.
int block_barrier(int id, int count, bool vote, int site);

// Counts as a thread at barrier `id`, and goes on.
void block_arrive(int id, int count);

// Lanes of the calling warp that have not exited.
uint32_t live_lanes();

// --- asynchronous copies -------------------------------------------------------------------------

// Starts a copy of `bytes` from global to shared memory; without a source, it writes zeros.
void copy_async(void* to, const void* from, int bytes);
void commit_copies();
// Waits until at most `pending` committed groups are still on their way; 0 waits for everything.
void wait_copies(int pending, int site);

// --- accesses that the compiler's instrumentation cannot see -------------------------------------

// `caller` is the return address of the code that the access belongs to.
void note_read(const void* from, size_t bytes, void* caller);
void note_write(void* to, size_t bytes, void* caller);
// A read and a write of one atomic instruction; such do not race with one another.
void note_atomic(void* at, size_t bytes);
// Copies memory that has been noted already.
void move_unseen(void* to, const void* from, size_t bytes);
// Stops the run: the hardware would trap.
[[noreturn]] void misaligned(const void* at, size_t bytes, void* caller = nullptr);

}  // namespace emu
