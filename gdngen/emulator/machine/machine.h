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
// When all that this thread has started has landed, it is an arrival at a barrier (see below).
void arrive_with_copies(void* barrier);

// --- barriers with phases (mbarrier) -------------------------------------------------------------

// A barrier is told by its address. A phase is complete when all arrivals have come and as many
// bytes have landed as were announced; then the next one begins.
void phase_init(void* barrier, unsigned arrivals);
void phase_arrive(void* barrier, int site);
void phase_expect(void* barrier, unsigned bytes);
// Waits until the phase of that parity is complete: the last one that is, or nothing.
void phase_wait(void* barrier, unsigned parity, int site);
// What findings call the barriers from here on, up to the next ones that have a name.
void name_phases(const void* barriers, const char* name);

// Makes what the thread has written and seen so far known to operations of the asynchronous proxy.
void proxy_fence(int site);

// --- copies of tiles by the asynchronous proxy (TMA) ---------------------------------------------

// A tensor as the host describes it; sizes and coordinates begin with the innermost dimension.
struct TensorMap {
  static constexpr int most = 5;
  unsigned char* base;
  int element_bytes, rank;
  long shape[most], strides[most];  // elements, bytes
  long box[most];
  int swizzle;     // 16 << swizzle bytes are permuted among themselves; 0: none
  int nan_outside; // loads fill with NaN what is outside of the tensor, else with zeros
  int floats;      // whether elements are floats
};

// Loads a box into shared memory; `barrier` counts its bytes.
void load_box(const TensorMap& map, void* barrier, void* to, const int* at);
// Stores what lies inside of the tensor.
void store_box(const TensorMap& map, const void* from, const int* at);
// The same for bytes in a row.
void load_bytes(void* to, const void* from, void* barrier, unsigned bytes);
void store_bytes(void* to, const void* from, unsigned bytes);
void commit_stores();
// Waits until at most `pending` committed groups still read shared memory, or, unless `reads` alone
// matter, write global memory.
void wait_stores(int pending, bool reads, int site);

// --- products of a warpgroup (wgmma) -------------------------------------------------------------

enum class Element { half, bfloat16, tfloat32 };

// c[64, n] (+)= a[64, k] @ b[k, n]: 128 threads hold c, each warp a quarter of its rows; operands are
// in shared memory as descriptors say, or a in registers.
struct WarpgroupProduct {
  Element element;
  int n;
  bool a_across, b_across;  // stored along m or n, not along k
  float a_sign, b_sign;
  bool half_result;
  uint64_t a_descriptor, b_descriptor;
  const unsigned* a_registers;  // of this thread; null: the descriptor counts
  void* c;
  bool accumulates;
};
void multiply_warpgroup(const WarpgroupProduct& product);
void warpgroup_fence(int site);
void commit_products();
void wait_products(int pending, int site);
// The registers that a thread of this warpgroup may have from here on.
void set_registers(int count);

// Where shared memory begins to count for descriptors.
unsigned shared_address(const void* at);

// --- accesses that the compiler's instrumentation cannot see -------------------------------------

// `caller` is the return address of the code that the access belongs to.
void note_read(const void* from, size_t bytes, void* caller);
void note_write(const void* to, size_t bytes, void* caller);
// A read and a write of one atomic instruction; such do not race with one another.
void note_atomic(void* at, size_t bytes);
// Copies memory that has been noted already.
void move_unseen(void* to, const void* from, size_t bytes);
// Stops the run: the hardware would trap.
[[noreturn]] void misaligned(const void* at, size_t bytes, void* caller = nullptr);

}  // namespace emu
