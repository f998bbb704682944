// Places for arena buffers. Large buffers first, each at the lowest place where no buffer that lives at the
// same time lies ("greedy by size" of Pisarchyk and Lee, "Efficient memory management for deep neural net
// inference", 2020). Lives are kept by blocks of time, so that a program of many micro-batches stays cheap.
#include <algorithm>

#include "core/base/error.h"
#include "core/program/program.h"

namespace het {
namespace {

constexpr int kBlock = 64;  // instructions in one block of time

struct Life {
  int first = -1, last = -1;
};

std::vector<Life> lives_of(const Program& program) {
  std::vector<Life> lives(program.buffers.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    visit_operands(program, program.instructions[i], [&](const Operand& operand, Use) {
      Life& life = lives[operand.buffer];
      if (life.first < 0) life.first = static_cast<int>(i);
      life.last = static_cast<int>(i);
    });
  }
  return lives;
}

}  // namespace

void place_buffers(Program& program) {
  const std::vector<Life> lives = lives_of(program);
  std::vector<int64_t> sizes;  // of buffers, bytes
  for (const BufferSpec& buffer : program.buffers) sizes.push_back(buffer.type.bytes());
  std::vector<BufferId> order;
  for (size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].home == Home::arena && lives[b].first >= 0)
      order.push_back(static_cast<BufferId>(b));
  std::stable_sort(order.begin(), order.end(), [&](BufferId a, BufferId b) {
    return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)];
  });

  // Of each block of time the buffers that live in it, by where they begin.
  std::vector<std::vector<std::pair<int64_t, BufferId>>> blocks(program.instructions.size() / kBlock + 1);
  std::vector<std::pair<int64_t, int64_t>> taken;  // [begin, end) bytes of neighbours in time
  std::vector<BufferId> seen(program.buffers.size(), -1);
  program.arena_bytes = 0;
  for (const BufferId b : order) {
    const Life life = lives[b];
    taken.clear();
    const int first = life.first / kBlock, last = life.last / kBlock;
    constexpr int kFew = 4;  // blocks whose lists are merged
    for (int block = first; block <= last; ++block) {
      const auto before = static_cast<int64_t>(taken.size());
      for (const auto& [begin, other] : blocks[block]) {
        if (seen[other] == b) continue;
        seen[other] = b;
        if (lives[other].first > life.last || lives[other].last < life.first) continue;
        taken.emplace_back(begin, begin + aligned(sizes[static_cast<size_t>(other)]));
      }
      if (last - first < kFew) std::inplace_merge(taken.begin(), taken.begin() + before, taken.end());
    }
    if (last - first >= kFew) std::sort(taken.begin(), taken.end());
    const int64_t bytes = aligned(sizes[static_cast<size_t>(b)]);
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - offset >= bytes) break;
      offset = std::max(offset, end);
    }
    program.buffers[b].offset = offset;
    program.arena_bytes = std::max(program.arena_bytes, offset + bytes);
    for (int block = first; block <= last; ++block) {
      auto& list = blocks[block];
      list.insert(std::upper_bound(list.begin(), list.end(), std::pair(offset, b)), {offset, b});
    }
  }
}

}  // namespace het
