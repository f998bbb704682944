// A queue in one piece of memory, which grows to the most that it ever held and stays there: unlike
// std::deque it allocates nothing while elements come and go. For plain values.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace het {

template <typename T>
class Ring {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return slots_[first_]; }
  const T& front() const { return slots_[first_]; }
  void push(T value) {
    if (size_ == slots_.size()) grow();
    slots_[(first_ + size_++) & (slots_.size() - 1)] = std::move(value);
  }
  void pop() {
    first_ = (first_ + 1) & (slots_.size() - 1);
    --size_;
  }
  void clear() { first_ = size_ = 0; }

 private:
  void grow() {
    std::vector<T> wider(slots_.empty() ? 8 : slots_.size() * 2);
    for (size_t i = 0; i < size_; ++i) wider[i] = std::move(slots_[(first_ + i) & (slots_.size() - 1)]);
    slots_ = std::move(wider);
    first_ = 0;
  }

  std::vector<T> slots_;  // a power of two of them
  size_t first_ = 0, size_ = 0;
};

}  // namespace het
