#include "core/data/images.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/base/random.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr int64_t kChannels = 3;
constexpr int64_t kFraction = 16;  // places and sizes of shapes are in 1/16 of a pixel

// Whether a shape whose size is r has the point (x, y), counted from its middle. Whole numbers, so that
// machines agree.
bool covers(int64_t shape, int64_t x, int64_t y, int64_t r) {
  const int64_t far = std::max(std::abs(x), std::abs(y)), square = x * x + y * y;
  const auto stripe = [&](int64_t along) { return (along + r) * 5 / (2 * r) % 2 == 0; };
  switch (shape) {
    case 0: return square <= r * r;
    case 1: return square <= r * r && 9 * square >= 4 * r * r;
    case 2: return 8 * far <= 7 * r;
    case 3: return 8 * far <= 7 * r && 2 * far >= r;
    case 4: return 4 * (std::abs(x) + std::abs(y)) <= 5 * r;
    case 5: return y >= -r && y <= r && 2 * std::abs(x) <= y + r;
    case 6: return far <= r && 3 * std::min(std::abs(x), std::abs(y)) <= r;
    case 7: return far <= r && 2 * std::min(std::abs(x - y), std::abs(x + y)) <= r;
    case 8: return far <= r && stripe(y);
    default: return far <= r && stripe(x);
  }
}

// Draws of one image, in order.
class Dice {
 public:
  Dice(PhiloxKey key, int64_t image) : key_(key), image_(static_cast<uint64_t>(image)) {}
  int64_t below(int64_t bound) {
    if (used_ == words_.size()) {
      words_ = philox(key_, block_++, image_);
      used_ = 0;
    }
    return static_cast<int64_t>(uint64_t{words_[used_++]} * static_cast<uint64_t>(bound) >> 32);
  }

 private:
  PhiloxKey key_;
  uint64_t image_, block_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

void draw_image(int64_t size, int64_t shape, Dice dice, uint8_t* pixels) {
  constexpr int64_t kNoise = 24;
  const int64_t whole = size * kFraction;
  const int64_t r = whole * 3 / 16 + dice.below(whole * 3 / 16);  // 3/16 to 6/16 of the image
  const int64_t cx = r + dice.below(whole - 2 * r), cy = r + dice.below(whole - 2 * r);
  for (int64_t c = 0; c < kChannels; ++c) {
    // The shape's colour is at least 80 of 256 away from the background's, all the way round.
    const int64_t ground = dice.below(256), figure = (ground + 80 + dice.below(96)) % 256;
    for (int64_t y = 0; y < size; ++y)
      for (int64_t x = 0; x < size; ++x) {
        const bool inside =
            covers(shape, x * kFraction + kFraction / 2 - cx, y * kFraction + kFraction / 2 - cy, r);
        const int64_t value = (inside ? figure : ground) + dice.below(2 * kNoise + 1) - kNoise;
        *pixels++ = static_cast<uint8_t>(std::clamp<int64_t>(value, 0, 255));
      }
  }
}

constexpr int64_t kCifarSize = 32, kCifarPixels = kChannels * kCifarSize * kCifarSize,
                  kCifarRecord = kCifarPixels + 1, kCifarClasses = 10;

// The images of a file, whose number follows from its size.
int64_t records_of(const OpenFile& file) {
  if (file.bytes == 0 || file.bytes % kCifarRecord != 0)
    fail_usage("'{}' has {} bytes; CIFAR-10's binary files are records of {} bytes", file.path, file.bytes,
               kCifarRecord);
  return file.bytes / kCifarRecord;
}

void read_records(const OpenFile& file, int64_t count, uint8_t* pixels, int32_t* labels) {
  std::vector<uint8_t> records(static_cast<size_t>(count * kCifarRecord));
  file.read_at(0, records.data(), std::ssize(records));
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* record = records.data() + i * kCifarRecord;
    if (record[0] >= kCifarClasses)
      fail_usage("'{}': record {} has the label {}; CIFAR-10's are 0 to {}", file.path, i + 1, record[0],
                 kCifarClasses - 1);
    labels[i] = record[0];
    std::memcpy(pixels + i * kCifarPixels, record + 1, static_cast<size_t>(kCifarPixels));
  }
}

}  // namespace

Images draw_shapes(int64_t count, int64_t size, int64_t classes, int64_t seed) {
  if (count < 1 || size < 8 || size > 4096 || classes < 1 || classes > kShapes)
    fail_usage(
        "{} images of {} by {} pixels of {} shapes: 1 image or more, 8 to 4096 pixels and 1 to {} shapes "
        "work",
        count, size, size, classes, kShapes);
  const TensorType type{DType::u8, {count, kChannels, size, size}};
  elements_of(type.shape);
  Images images{Tensor(type), Tensor({DType::i32, {count}}), 0};
  const PhiloxKey key = philox_key(static_cast<uint64_t>(seed), hash_of("shapes"));
  parallel_for(count, 1 + (int64_t{1} << 14) / (size * size), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      images.labels.data<int32_t>()[i] = static_cast<int32_t>(i % classes);
      draw_image(size, i % classes, Dice(key, i),
                 images.pixels.data<uint8_t>() + i * kChannels * size * size);
    }
  });
  return images;
}

Images read_cifar10(const Path& folder) {
  std::vector<OpenFile> files;
  std::vector<int64_t> counts;
  int64_t total = 0;
  const auto open = [&](const Path& path) {
    files.emplace_back(path);
    counts.push_back(records_of(files.back()));
    total += counts.back();
  };
  for (int i = 1; i <= 5; ++i) {
    const Path path = folder.child(fmt::format("data_batch_{}.bin", i));
    if (i == 1 || kind_of(path) != FileKind::none) open(path);
  }
  open(folder.child("test_batch.bin"));
  Images images{Tensor({DType::u8, {total, kChannels, kCifarSize, kCifarSize}}),
                Tensor({DType::i32, {total}}), counts.back()};
  int64_t at = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    read_records(files[f], counts[f], images.pixels.data<uint8_t>() + at * kCifarPixels,
                 images.labels.data<int32_t>() + at);
    at += counts[f];
  }
  return images;
}

}  // namespace het
