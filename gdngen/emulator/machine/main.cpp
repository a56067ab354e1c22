// The program that a kernel becomes: reads the tensors, runs every block of the grid, writes the
// tensors back and prints the findings.
//
// Arguments: gx gy gz tx ty tz shared_bytes order late skipped_site, then for each parameter of the
// kernel `name=path` (a tensor's bytes, overwritten with the result), `name:integer`, or `name@map`
// (the tensor that a map describes, element_bytes, floats, nan_outside, swizzle, rank, then rank each
// of sizes, strides and box, commas between). More `name=path` are tensors that only maps name.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unistd.h>

#include "state.h"

extern "C" {
extern void* emu_arguments[];   // a pointer to a tensor's bytes or to a long
extern const int emu_arguments_count;
}

namespace emu {

int run_block(Index block);
const void* last_known_caller();

namespace {

struct Tensor {
  std::string name, path, bytes;
};
std::vector<Tensor> tensors;
std::vector<long> integers;
std::vector<TensorMap> maps;

TensorMap read_map(const std::string& text) {
  std::istringstream stream(text);
  std::string name, number;
  std::getline(stream, name, ',');
  std::vector<long> numbers;
  while (std::getline(stream, number, ',')) numbers.push_back(atol(number.c_str()));
  TensorMap map = {};
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name == name) map.base = regions[i + 1].begin;
  if (!map.base) fail("a tensor map of a tensor that was not given");
  map.element_bytes = numbers[0], map.floats = numbers[1], map.nan_outside = numbers[2];
  map.swizzle = numbers[3], map.rank = numbers[4];
  for (int i = 0; i < map.rank; ++i) {
    map.shape[i] = numbers[5 + i];
    map.strides[i] = numbers[5 + map.rank + i];
    map.box[i] = numbers[5 + 2 * map.rank + i];
  }
  return map;
}

void read_arguments(int count, char** arguments) {
  integers.reserve(count);
  maps.reserve(count);
  std::vector<std::string> names;
  std::vector<size_t> sizes;
  std::vector<int> positions;
  for (int i = 0; i < count; ++i) {
    const std::string text = arguments[i];
    const size_t split = text.find_first_of("=:@");
    if (text[split] == '@') continue;  // until the tensors have their places
    if (text[split] == ':') {
      integers.push_back(atol(text.c_str() + split + 1));
      emu_arguments[i] = &integers.back();
      continue;
    }
    std::ifstream file(text.substr(split + 1), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    tensors.push_back({text.substr(0, split), text.substr(split + 1), std::move(bytes)});
    names.push_back(tensors.back().name);
    sizes.push_back(tensors.back().bytes.size());
    positions.push_back(i);
  }
  lay_out(names, sizes);
  for (size_t i = 0; i < tensors.size(); ++i) {
    memcpy(regions[i + 1].begin, tensors[i].bytes.data(), tensors[i].bytes.size());
    if (positions[i] < emu_arguments_count) emu_arguments[positions[i]] = regions[i + 1].begin;
  }
  for (int i = 0; i < emu_arguments_count; ++i) {
    const std::string text = arguments[i];
    const size_t split = text.find_first_of("=:@");
    if (text[split] != '@') continue;
    maps.push_back(read_map(text.substr(split + 1)));
    emu_arguments[i] = &maps.back();
  }
}

void write_tensors() {
  for (size_t i = 0; i < tensors.size(); ++i)
    std::ofstream(tensors[i].path, std::ios::binary)
        .write(reinterpret_cast<char*>(regions[i + 1].begin), regions[i + 1].bytes);
}

// Shared memory starts as NaN in every float type, so that a stale read also shows in the result.
void poison_shared() {
  for (const Region& region : regions)
    if (region.shared) memset(region.begin, 0xff, region.bytes);
}

// An address so far outside that it is not even in a guard zone.
void crashed(int) {
  report({"out of bounds", nullptr, 0, 0, last_known_caller(), nullptr, current_thread(), -1,
          "an address outside of all memory, after this access"});
  finish(0);
}

void catch_crashes() {
  static char stack[64 << 10];
  const stack_t alternate{stack, 0, sizeof(stack)};
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  action.sa_handler = crashed;
  action.sa_flags = SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
}

int run(int count, char** arguments) {
  constexpr int fixed = 10;
  int numbers[fixed];
  if (count < fixed + emu_arguments_count) return 2;
  for (int i = 0; i < fixed; ++i) numbers[i] = atoi(arguments[i]);
  const auto [gx, gy, gz, tx, ty, tz, shared_bytes, order, late, skipped] = numbers;
  launch = {{gx, gy, gz}, {tx, ty, tz},  tx * ty * tz, size_t(shared_bytes),
            order,        late != 0,     skipped};
  read_arguments(count - fixed, arguments + fixed);
  catch_crashes();
  printf("shared\t%lx\n", long(regions[0].begin));
  const int blocks = gx * gy * gz;
  long barriers = 0;
  for (int i = 0; i < blocks; ++i) {
    const int block = order == 1 ? blocks - 1 - i : i;
    poison_shared();
    barriers += run_block({block % gx, block / gx % gy, block / gx / gy});
  }
  write_tensors();
  printf("barriers\t%ld\nskipped\t%ld\n", barriers, skipped_waits);
  finish(0);
}

}  // namespace
}  // namespace emu

int main(int count, char** arguments) { return emu::run(count - 1, arguments + 1); }
